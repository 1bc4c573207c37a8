"""`millrace worker`: runs jobs in this process, or supervises several worker processes."""

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

from millrace.app.app import App
from millrace.app.format import plural
from millrace.app.settings import SETTINGS
from millrace.cli import exits
from millrace.cli.session import CommandSession
from millrace.cli.workers.child_options import ChildOptions
from millrace.cli.workers.logs import start_logging
from millrace.cli.workers.object_options import ObjectOptions
from millrace.domain.errors import InvalidInput
from millrace.worker.signals import on_stop_signal

if TYPE_CHECKING:
    from millrace.worker.worker import Worker

EXAMPLES = {
    "worker": (
        "Examples:\n"
        "  millrace worker --app shop.tasks:app\n"
        "  millrace worker --app shop.tasks:app --queues mail,default --slots 50\n"
        "  millrace worker --app shop.tasks:app --processes 4        one for each core\n"
        "  millrace worker --app shop.tasks:app --burst              stop when no job is ready\n"
        "  millrace worker --app shop.tasks:app --max-jobs 1000      stop after 1,000 jobs\n"
        "  millrace worker --app shop.tasks:app --reload             restart when code changes\n"
        "  millrace worker --app shop.tasks:app --max-memory-per-child 1GiB\n"
        "  millrace worker --app shop.tasks:app --url s3://jobs/shop --shards 0-7",
        "Signals:\n"
        "  SIGTERM, Ctrl-C   claim no more jobs, wait --shutdown-deadline for running jobs, release the rest\n"
        "  a second one      release them at once\n"
        "A worker that stops cleanly exits with 0.",
    )
}
log = logging.getLogger("millrace.worker")
BETWEEN_SUMMARIES = 10.0


async def worker(
    session: CommandSession,
    queues: Annotated[
        str | None, typer.Option("--queues", "-q", help="Queues to serve (default: those of its tasks).", metavar="A,B")
    ] = None,
    tasks: Annotated[
        str | None, typer.Option("--tasks", help="Tasks to run (default: all of the app).", metavar="A,B")
    ] = None,
    slots: Annotated[
        str | None, typer.Option("--slots", "-s", help="Concurrent jobs per process (default 10).", metavar="N")
    ] = None,
    processes: Annotated[
        str | None, typer.Option("--processes", "-p", help="Number of worker processes (default 1).", metavar="N")
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", "--id", help="Name of the worker; must be unique.", metavar="TEXT")
    ] = None,
    burst: Annotated[bool, typer.Option("--burst", help="Stop when no job is ready.")] = False,
    max_jobs: Annotated[
        int | None, typer.Option("--max-jobs", min=1, help="Stop after this many jobs (per process).", metavar="N")
    ] = None,
    lease: Annotated[
        str | None,
        typer.Option(
            "--lease", help="Lease of jobs for which neither the job nor the task sets one.", metavar="DURATION"
        ),
    ] = None,
    shutdown_deadline: Annotated[
        str | None,
        typer.Option(
            "--shutdown-deadline", help="How long running jobs may take to finish (default 25s).", metavar="DURATION"
        ),
    ] = None,
    grace: Annotated[
        str | None,
        typer.Option("--grace", help="How long aborted handlers may clean up (default 3s).", metavar="DURATION"),
    ] = None,
    unknown_task: Annotated[
        str | None,
        typer.Option(
            "--unknown-task", help="What to do with jobs of unknown tasks (default leave).", metavar="leave|bury"
        ),
    ] = None,
    code_version: Annotated[
        str,
        typer.Option(
            "--code-version", help="Version of your code, for example a commit; shown with the worker.", metavar="TEXT"
        ),
    ] = "",
    log_level: Annotated[
        str | None,
        typer.Option(
            "--log-level",
            help="trace to error, also by module: millrace.store=debug,warn (default info).",
            metavar="LEVEL",
        ),
    ] = None,
    log_format: Annotated[
        str | None, typer.Option("--log-format", help="text or json lines, on stderr (default text).", metavar="FORMAT")
    ] = None,
    reload: Annotated[
        bool, typer.Option("--reload", help="Restart when Python files below this folder change; for development.")
    ] = False,
    supervised: Annotated[bool, typer.Option("--supervised", hidden=True)] = False,
    *,
    children: ChildOptions,
    objects: ObjectOptions,
) -> int:
    """Run jobs of your app until stopped."""
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
    if settings["processes"] > 1 or reload:
        return await _supervise(session, name, burst, max_jobs, code_version, children, reload)
    app = session.app()
    made = app.worker(
        queues=settings["queues"],
        tasks=settings["tasks"],
        slots=settings["slots"],
        name=name,
        burst=burst,
        max_jobs=max_jobs,
        lease=settings["lease"],
        shutdown_deadline=settings["shutdown_deadline"],
        grace=settings["grace"],
        unknown_task=settings["unknown_task"],
        version=code_version,
        redact=settings["redact"] or (),
        monitor=False if settings["no_monitor"] else None,
        **for_children,
    )
    stops: list[asyncio.Future[None]] = []
    if not made.tasks:
        raise InvalidInput(f"{settings['app']} has no tasks, so there is nothing to run. Register some with @app.task")

    def on_signal() -> None:
        if not stops:
            words = "stopping: %s may finish within %g s; interrupt again to release them at once"
            log.info(words, plural(made.stats.running, "running job"), made.shutdown_deadline)
        stops.append(asyncio.ensure_future(made.stop()))

    # From here on a signal means stop, also before the worker has started and after it has ended.
    with on_stop_signal(on_signal):
        await _work(session, app, made, supervised)
    return exits.OK


async def _work(session: CommandSession, app: App, made: Worker, supervised: bool) -> None:
    async with session.connected(app, create=True):
        with _StopWithoutSupervisor(made, supervised), _log_summaries(made):
            await made.run()
    _print_stats(session, made)


@contextlib.contextmanager
def _log_summaries(made: Worker) -> Iterator[None]:
    """Log a summary every ten seconds inside this block. A line for each job would cost more than a short job
    itself.
    """

    async def log_regularly() -> None:
        last = (0, 0)
        while True:
            await asyncio.sleep(BETWEEN_SUMMARIES)
            stats = made.stats
            done, failed = stats.completed - last[0], stats.failed - last[1]
            if done or failed:
                words = "worker %s: %d completed and %d failed in the last %g s, %d running"
                log.info(words, made.id, done, failed, BETWEEN_SUMMARIES, stats.running)
            last = (stats.completed, stats.failed)

    summaries = asyncio.ensure_future(log_regularly())
    try:
        yield
    finally:
        summaries.cancel()


def _print_stats(session: CommandSession, made: Worker) -> None:
    stats = made.stats
    if session.output.json:
        session.output.document({"worker": made.id, **dataclasses.asdict(stats), "failed": stats.failed})


class _StopWithoutSupervisor:
    """Stops the worker when the supervisor dies. The supervisor holds the other end of the worker's stdin, which closes
    when the supervisor ends, even on SIGKILL.
    """

    def __init__(self, made: Worker, supervised: bool) -> None:
        self._worker = made
        self._watch = supervised
        self._stop: asyncio.Task[None] | None = None

    def __enter__(self) -> None:
        if self._watch:
            asyncio.get_running_loop().add_reader(sys.stdin.fileno(), self._on_stdin)

    def __exit__(self, *_: object) -> None:
        if self._watch:
            asyncio.get_running_loop().remove_reader(sys.stdin.fileno())

    def _on_stdin(self) -> None:
        if os.read(sys.stdin.fileno(), 1) == b"" and self._stop is None:
            asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
            log.warning("the supervisor is gone; stopping")
            self._stop = asyncio.ensure_future(self._worker.stop())


async def _supervise(
    session: CommandSession,
    name: str | None,
    burst: bool,
    max_jobs: int | None,
    code_version: str,
    children: ChildOptions,
    reload: bool,
) -> int:
    """Start and supervise worker processes, and return the exit code. This process runs no jobs itself."""
    from millrace.cli.workers.reload import run_reloading
    from millrace.cli.workers.supervisor import Supervisor

    settings = session.settings
    if settings["processes"] > 1 and str(settings["url"] or "").startswith("memory:"):
        raise InvalidInput("memory:// is not shared between processes; use sqlite:///… or --processes 1")
    # Flags are passed as environment variables: a URL may hold a password, and argv is public.
    environ = {**os.environ, **settings.as_variables("flag"), SETTINGS["processes"].env: "1"}
    base = name or f"{os.uname().nodename[:64]}-{os.getpid()}"

    def command(number: int) -> list[str]:
        line = [sys.executable, "-m", "millrace", "worker", "--supervised", "--name", f"{base}-{number}"]
        version = ["--code-version", code_version] if code_version else []
        ends = [*(["--burst"] if burst else []), *(["--max-jobs", str(max_jobs)] if max_jobs else [])]
        return [*line, *ends, *version, *children.arguments()]

    stop_timeout = settings["shutdown_deadline"] + settings["grace"] + 10
    once = burst or max_jobs is not None

    def start() -> Supervisor:
        return Supervisor(command, settings["processes"], environ, stop_timeout=stop_timeout, once=once)

    if reload:
        return await run_reloading(start, session.folders)
    supervisor = start()
    code = await supervisor.run()
    if session.output.json:
        session.output.document({"processes": settings["processes"], "restarts": supervisor.restarts, "exit": code})
    return code
