"""Turns an async function into a command. It derives the options from the parameters, adds the options that all
commands share, and sets the exit code. `running.py` runs it.

The first parameter of the function is the session, and its return value is the exit code. A parameter whose type is a
dataclass becomes one option per field. So all commands that filter jobs share one dataclass of filter options.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Annotated, Any, get_type_hints

import typer

from millrace.cli.output import Output
from millrace.cli.running import run_command
from millrace.cli.session import CommandSession

Command = Callable[..., Awaitable[int]]
ON_UVLOOP = frozenset({"serve", "worker"})


@dataclass
class Common:
    """Options of every command. They can be given before or after the command's name."""

    url: Annotated[
        str | None, typer.Option("--url", help="The store, e.g. sqlite:///jobs.db (MILLRACE_URL).", metavar="URL")
    ] = None
    app: Annotated[
        str | None, typer.Option("--app", help="Your app, as module:name (MILLRACE_APP).", metavar="MODULE:NAME")
    ] = None
    json: Annotated[bool, typer.Option("--json", help="Write JSON to stdout.")] = False

    def session(self) -> CommandSession:
        return CommandSession({"url": self.url, "app": self.app}, Output(self.json))


def as_command(function: Command) -> Callable[..., None]:
    """Return a function for typer that runs `function`. It has the parameters of `function` and the common options. A
    dataclass parameter is replaced by one parameter per field.
    """
    hints = get_type_hints(function, include_extras=True)
    bundles: dict[str, type[Any]] = {"": Common}
    flat: list[inspect.Parameter] = []
    for name, parameter in list(inspect.signature(function).parameters.items())[1:]:
        if is_dataclass(hints[name]) and isinstance(hints[name], type):
            bundles[name] = hints[name]
            flat += _options(hints[name])
        else:
            flat.append(_keyword(name, hints[name], parameter.default))
    flat += _options(Common)

    def run(**values: Any) -> None:
        context = values.pop("_context")
        parts = {
            name: kind(**{field.name: values.pop(field.name) for field in fields(kind)})
            for name, kind in bundles.items()
        }
        common = parts.pop("")
        shared = _merged(common, context.obj)
        fast = function.__name__ in ON_UVLOOP
        raise typer.Exit(run_command(shared.session, lambda session: function(session, **values, **parts), fast))

    flat.insert(0, _keyword("_context", typer.Context, inspect.Parameter.empty))
    run.__name__ = function.__name__
    run.__doc__ = function.__doc__
    vars(run)["__signature__"] = inspect.Signature(flat)
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in flat}
    return run


def _options(kind: type[Any]) -> list[inspect.Parameter]:
    hints = get_type_hints(kind, include_extras=True)
    return [
        _keyword(field.name, hints[field.name], None if field.default is MISSING else field.default)
        for field in fields(kind)
    ]


def _keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


def _merged(after: Common, before: Common | None) -> Common:
    """Return the common options of a command. Options after the command's name take precedence over options before
    it.
    """
    if before is None:
        return after
    return Common(after.url or before.url, after.app or before.app, after.json or before.json)
