"""The integration with Flask: an app whose handlers run in an app context, and the command `flask millrace`."""

from __future__ import annotations

import contextvars
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import get_ident
from typing import Any

import click
from flask import Flask, has_app_context
from flask.cli import ScriptInfo

from millrace.app.app import App
from millrace.app.telemetry.log_context import current_job
from millrace.domain.errors import InvalidInput
from millrace.domain.job import Job

EXTENSION = "millrace"
_CURRENT = "millrace.contrib.flask:current"
# The job that the app context was entered for, and its thread. A context ends in the thread in which it began.
_owner: ContextVar[tuple[Job, int] | None] = ContextVar("millrace_flask_owner", default=None)


class Millrace(App):
    """An app of Millrace for Flask: `queue = Millrace()`, then `queue.init_app(flask)` in the application factory.

    The store is the one in the configuration of Flask (`MILLRACE_URL`), or else the one given here. Handlers run in an
    app context of Flask, so they can use `current_app`, `g` and extensions. In everything else it is an `App`.
    """

    flask: Flask | None = None

    def init_app(self, flask: Flask) -> None:
        """Register the app as an extension of a Flask application, and add the command `flask millrace` to it."""
        url = flask.config.get("MILLRACE_URL")
        if url is not None:
            self.use(url)
        self.flask = flask
        flask.extensions[EXTENSION] = self
        flask.cli.add_command(_command)

    @contextmanager
    def surroundings(self) -> Iterator[None]:
        """Enter an app context, unless this is a direct call: in a request, or in the handler of another job."""
        job = current_job.get()
        owner = None if job is None else (job, get_ident())
        if self.flask is None or (has_app_context() and _owner.get() == owner):
            yield
            return
        token = _owner.set(owner)
        try:
            with self.flask.app_context():
                yield
        finally:
            _owner.reset(token)


_loaded: Flask | None = None  # by the command `flask`


@click.command(
    "millrace",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    add_help_option=False,
    help="Run workers and inspect jobs, for example: flask millrace worker --slots 20",
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_obj
def _command(info: ScriptInfo, arguments: tuple[str, ...]) -> None:
    global _loaded  # noqa: PLW0603 - the command line finds the app by the name of a module
    from millrace.cli.root import run

    _loaded = info.load_app()
    if info.app_import_path:
        os.environ["FLASK_APP"] = info.app_import_path  # for worker processes that are started from here
    # In a new context: `flask` has pushed an app context, which all jobs would share.
    code = contextvars.Context().run(run, ["--app", _CURRENT, *(arguments or ("--help",))])
    sys.exit(code)


def __getattr__(name: str) -> Any:
    """`millrace worker --app millrace.contrib.flask:current` finds the app of the Flask application of FLASK_APP."""
    if name != "current":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    flask = _loaded or ScriptInfo(app_import_path=os.environ.get("FLASK_APP")).load_app()
    if EXTENSION not in flask.extensions:
        raise InvalidInput(f"{flask!r} has no Millrace: call queue.init_app(flask) where the application is made")
    return flask.extensions[EXTENSION]
