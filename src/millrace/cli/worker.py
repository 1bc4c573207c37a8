"""`millrace worker`: run jobs, in this process or in several that this one watches over."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from millrace.cli import exits
from millrace.cli.children import Children
from millrace.cli.logs import start_logging, tell_of_jobs
from millrace.cli.of_objects import OfObjects
from millrace.cli.session import Session, url_of
from millrace.cli.text import plural
from millrace.domain.errors import InvalidInput
from millrace.runtime.app import App
from millrace.runtime.settings import SETTINGS
from millrace.runtime.signals import heard_by

if TYPE_CHECKING:
    from millrace.runtime.worker import Worker

EXAMPLES = {
    "worker": (
        "Examples:\n"
        "  millrace worker --app shop.tasks:app\n"
        "  millrace worker --app shop.tasks:app --queues mail,default --slots 50\n"
        "  millrace worker --app shop.tasks:app --processes 4        one for each core\n"
        "  millrace worker --app shop.tasks:app --burst              until nothing is ready, then exit\n"
        "  millrace worker --app shop.tasks:app --max-memory-per-child 1GiB\n"
        "  millrace worker --app shop.tasks:app --url s3://jobs/shop --shards 0-7",
        "Signals:\n"
        "  SIGTERM, Ctrl-C   claim no more, let running jobs end for --shutdown-deadline, give back the rest\n"
        "  a second one      give back at once\n"
        "A worker that stopped in good order exits 0, however it was asked to.",
    )
}
log = logging.getLogger("millrace.worker")
BETWEEN_SUMMARIES = 10.0


async def worker(
    session: Session,
    queues: Annotated[
        str | None, typer.Option("--queues", "-q", help="Queues to serve: those of its tasks.", metavar="A,B")
    ] = None,
    tasks: Annotated[str | None, typer.Option("--tasks", help="Tasks to take: all of the app.", metavar="A,B")] = None,
    slots: Annotated[
        str | None, typer.Option("--slots", "-s", help="Jobs at a time in each process (10).", metavar="N")
    ] = None,
    processes: Annotated[
        str | None, typer.Option("--processes", "-p", help="Workers, each in a process of its own (1).", metavar="N")
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", "--id", help="Its name in the store; no two may share one.", metavar="TEXT")
    ] = None,
    burst: Annotated[bool, typer.Option("--burst", help="Stop when nothing is ready.")] = False,
    lease: Annotated[
        str | None, typer.Option("--lease", help="Lease of every job: the task's own.", metavar="DURATION")
    ] = None,
    shutdown_deadline: Annotated[
        str | None, typer.Option("--shutdown-deadline", help="How long running jobs may end (25s).", metavar="DURATION")
    ] = None,
    grace: Annotated[
        str | None, typer.Option("--grace", help="How long aborted handlers may clean up (3s).", metavar="DURATION")
    ] = None,
    unknown_task: Annotated[
        str | None, typer.Option("--unknown-task", help="Jobs of unknown tasks (leave).", metavar="leave|bury")
    ] = None,
    code_version: Annotated[
        str, typer.Option("--code-version", help="Recorded with the worker, e.g. a commit.", metavar="TEXT")
    ] = "",
    log_level: Annotated[
        str | None, typer.Option("--log-level", help="debug, info, warning or error (info).", metavar="LEVEL")
    ] = None,
    log_format: Annotated[
        str | None, typer.Option("--log-format", help="text or json lines, on stderr (text).", metavar="FORMAT")
    ] = None,
    supervised: Annotated[bool, typer.Option("--supervised", hidden=True)] = False,
    *,
    children: Children,
    objects: OfObjects,
) -> int:
    """Run jobs of your app until told to stop."""
    session = session.with_flags(
        queues=queues,
        tasks=tasks,
        slots=slots,
        processes=processes,
        lease=lease,
        shutdown_deadline=shutdown_deadline,
        grace=grace,
        unknown_task=unknown_task,
        log_level=log_level,
        log_format=log_format,
        **objects.flags(),
    )
    settings = session.settings
    if not session.has_app:
        raise InvalidInput("a worker needs your app: --app module:name, MILLRACE_APP, or app in pyproject.toml")
    if name is not None and not (name.strip() and name.isprintable() and len(name) <= 200):
        raise InvalidInput(f"--name must be a line of 1 to 200 characters, not {name!r}")
    for_children = children.options()
    objects.check(session)
    start_logging(settings["log_level"], settings["log_format"], settings["redact"] or ())
    session.output.log = log
    if settings["processes"] > 1:
        return await _several(session, name, burst, code_version, children)
    app = session.app()
    tell_of_jobs(app, settings["redact"] or ())
    made = app.worker(
        queues=settings["queues"],
        tasks=settings["tasks"],
        slots=settings["slots"],
        name=name,
        burst=burst,
        lease=settings["lease"],
        shutdown_deadline=settings["shutdown_deadline"],
        grace=settings["grace"],
        unknown_task=settings["unknown_task"],
        version=code_version,
        monitor=False if settings["no_monitor"] else None,
        **for_children,
    )
    stops: list[asyncio.Future[None]] = []
    if not made.tasks:
        raise InvalidInput(f"{settings['app']} has no tasks, so there is nothing to run. Register some with @app.task")

    def asked() -> None:
        if not stops:
            words = "asked to stop: %s may end within %g s; ask again to give them back at once"
            log.info(words, plural(made.stats.running, "running job"), made.shutdown_deadline)
        stops.append(asyncio.ensure_future(made.stop()))

    # From here to the end a signal means stop: also one that comes before the worker listens or after it is done.
    with heard_by(asked):
        await _work(session, app, made, supervised)
    return exits.OK


async def _work(session: Session, app: App, made: Worker, supervised: bool) -> None:
    served, count = ", ".join(made.queues), len(made.tasks)
    async with session.connected(app, create=True):
        words = "worker %s: %s from %s, %s, on %s"
        log.info(words, made.id, plural(count, "task"), served, plural(made.slots, "slot"), url_of(app))
        with _Orphaned(made, supervised), _telling(made):
            await made.run()
    _farewell(session, made)


@contextlib.contextmanager
def _telling(made: Worker) -> Iterator[None]:
    """Now and then, what was done since: a line for each job would be most of the work of a quick queue."""

    async def tell() -> None:
        told = (0, 0)
        while True:
            await asyncio.sleep(BETWEEN_SUMMARIES)
            stats = made.stats
            done, failed = stats.completed - told[0], stats.failed - told[1]
            if done or failed:
                words = "worker %s: %d completed and %d failed in the last %g s, %d running"
                log.info(words, made.id, done, failed, BETWEEN_SUMMARIES, stats.running)
            told = (stats.completed, stats.failed)

    telling = asyncio.ensure_future(tell())
    try:
        yield
    finally:
        telling.cancel()


def _farewell(session: Session, made: Worker) -> None:
    stats = made.stats
    log.info(
        "worker %s has stopped: %d completed, %d failed, %d given back",
        made.id,
        stats.completed,
        stats.failed,
        stats.released,
    )
    if session.output.json:
        session.output.document({"worker": made.id, **dataclasses.asdict(stats), "failed": stats.failed})


class _Orphaned:
    """Stop when the supervisor is gone: it holds the other end of stdin, and that closes with it, even by SIGKILL."""

    def __init__(self, made: Worker, supervised: bool) -> None:
        self._worker = made
        self._watch = supervised
        self._stop: asyncio.Task[None] | None = None

    def __enter__(self) -> None:
        if self._watch:
            asyncio.get_running_loop().add_reader(sys.stdin.fileno(), self._heard)

    def __exit__(self, *_: object) -> None:
        if self._watch:
            asyncio.get_running_loop().remove_reader(sys.stdin.fileno())

    def _heard(self) -> None:
        if os.read(sys.stdin.fileno(), 1) == b"" and self._stop is None:
            asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
            log.warning("the supervisor is gone; stopping")
            self._stop = asyncio.ensure_future(self._worker.stop())


async def _several(session: Session, name: str | None, burst: bool, code_version: str, children: Children) -> int:
    """This process runs no jobs: it starts the others, and starts them again when they die."""
    from millrace.cli.supervisor import Supervisor

    settings = session.settings
    if str(settings["url"] or "").startswith("memory:"):
        raise InvalidInput("memory:// is not shared between processes; use sqlite:///… or --processes 1")
    # Flags become variables for the others: an URL may hold a password, and argv is for all to see.
    environ = {**os.environ, **settings.as_variables("flag"), SETTINGS["processes"].env: "1"}
    base = name or f"{os.uname().nodename[:64]}-{os.getpid()}"

    def command(number: int) -> list[str]:
        line = [sys.executable, "-m", "millrace", "worker", "--supervised", "--name", f"{base}-{number}"]
        version = ["--code-version", code_version] if code_version else []
        return [*line, *(["--burst"] if burst else []), *version, *children.arguments()]

    patience = settings["shutdown_deadline"] + settings["grace"] + 10
    supervisor = Supervisor(command, settings["processes"], environ, patience=patience, once=burst)
    code = await supervisor.run()
    if session.output.json:
        session.output.document({"processes": settings["processes"], "restarts": supervisor.restarts, "exit": code})
    return code
