"""Runs `millrace worker`: jobs in this process, or a supervisor of several worker processes.

This module needs no package besides those of the core. `main` is the command where typer is not installed: its options
are the settings.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from millrace.app.app import App
from millrace.app.format import plural
from millrace.app.settings import SETTINGS
from millrace.cli import exits
from millrace.cli.output import Output
from millrace.cli.running import run_command
from millrace.cli.session import CommandSession
from millrace.cli.workers.liveness import liveness_reported
from millrace.cli.workers.logs import start_logging
from millrace.domain.errors import InvalidInput
from millrace.domain.extras import install
from millrace.worker.signals import on_stop_signal

if TYPE_CHECKING:
    from millrace.worker.worker import Worker

log = logging.getLogger("millrace.worker")
BETWEEN_SUMMARIES = 10.0
OF_THE_SERVER = {"host", "port", "allow_hosts", "viewer_token", "operator_token", "admin_token"}


@dataclass(frozen=True)
class WorkerRun:
    """The options of the command that are not settings."""

    name: str | None = None
    burst: bool = False
    max_jobs: int | None = None
    code_version: str = ""
    reload: bool = False
    supervised: bool = False
    for_children: dict[str, Any] = field(default_factory=dict)  # keyword arguments of `App.worker`
    child_arguments: list[str] = field(default_factory=list)  # the same for the command line of another process


def main(arguments: Sequence[str]) -> int:
    """Run the command without typer, and return its exit code. Each setting of a worker is an option."""
    parser = argparse.ArgumentParser(
        prog="millrace worker",
        description="Run jobs of your app until stopped. The options are settings: environment variables, such as "
        f"MILLRACE_APP, set them too. For more options and other commands: {install('cli')}",
        allow_abbrev=False,
    )
    for name, setting in SETTINGS.items():
        if name not in OF_THE_SERVER:
            yes_or_no: dict[str, Any] = {"nargs": "?", "const": "yes"} if setting.default is False else {}
            parser.add_argument("--" + name.replace("_", "-"), help=setting.help, metavar="VALUE", **yes_or_no)
    parser.add_argument("--name", help=argparse.SUPPRESS)
    parser.add_argument("--supervised", action="store_true", help=argparse.SUPPRESS)
    flags = vars(parser.parse_args(arguments))
    run = WorkerRun(name=flags.pop("name"), supervised=flags.pop("supervised"))
    return run_command(
        lambda: CommandSession(flags, Output(json=False)), lambda session: run_worker(session, run), fast=True
    )


async def run_worker(session: CommandSession, run: WorkerRun) -> int:
    """Run jobs until the worker is stopped, and return the exit code."""
    settings = session.settings
    if not session.has_app:
        raise InvalidInput("a worker needs your app: --app module:name, MILLRACE_APP, or app in pyproject.toml")
    if run.name is not None and not (run.name.strip() and run.name.isprintable() and len(run.name) <= 200):
        raise InvalidInput(f"--name must be a line of 1 to 200 characters, not {run.name!r}")
    start_logging(settings["log_level"], settings["log_format"], settings["redact"] or ())
    session.output.log = log
    if settings["processes"] > 1 or run.reload:
        return await _supervise(session, run)
    app = session.app()
    made = app.worker(
        queues=settings["queues"],
        tasks=settings["tasks"],
        slots=settings["slots"],
        name=run.name,
        burst=run.burst,
        max_jobs=run.max_jobs,
        lease=settings["lease"],
        shutdown_deadline=settings["shutdown_deadline"],
        grace=settings["grace"],
        unknown_task=settings["unknown_task"],
        version=run.code_version,
        redact=settings["redact"] or (),
        monitor=False if settings["no_monitor"] else None,
        **run.for_children,
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
        await _work(session, app, made, run.supervised)
    return exits.OK


async def _work(session: CommandSession, app: App, made: Worker, supervised: bool) -> None:
    # The supervisor reports for its children.
    alive = contextlib.nullcontext() if supervised else liveness_reported(session.settings["alive_file"])
    async with session.connected(app, create=True):
        with alive, _StopWithoutSupervisor(made, supervised), _log_summaries(made):
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


async def _supervise(session: CommandSession, run: WorkerRun) -> int:
    """Start and supervise worker processes, and return the exit code. This process runs no jobs itself."""
    from millrace.cli.workers.reload import run_reloading
    from millrace.cli.workers.supervisor import Supervisor

    settings = session.settings
    if settings["processes"] > 1 and str(settings["url"] or "").startswith("memory:"):
        raise InvalidInput("memory:// is not shared between processes; use sqlite:///… or --processes 1")
    # Flags are passed as environment variables: a URL may hold a password, and argv is public.
    environ = {**os.environ, **settings.as_variables("flag"), SETTINGS["processes"].env: "1"}
    base = run.name or f"{os.uname().nodename[:64]}-{os.getpid()}"

    def command(number: int) -> list[str]:
        line = [sys.executable, "-m", "millrace", "worker", "--supervised", "--name", f"{base}-{number}"]
        version = ["--code-version", run.code_version] if run.code_version else []
        ends = [*(["--burst"] if run.burst else []), *(["--max-jobs", str(run.max_jobs)] if run.max_jobs else [])]
        return [*line, *ends, *version, *run.child_arguments]

    stop_timeout = settings["shutdown_deadline"] + settings["grace"] + 10
    once = run.burst or run.max_jobs is not None

    def make() -> Supervisor:
        return Supervisor(command, settings["processes"], environ, stop_timeout=stop_timeout, once=once)

    with liveness_reported(settings["alive_file"]):
        if run.reload:
            return await run_reloading(make, session.folders)
        supervisor = make()
        code = await supervisor.run()
    if session.output.json:
        session.output.document({"processes": settings["processes"], "restarts": supervisor.restarts, "exit": code})
    return code
