"""`millrace demo`: run a small web shop on a SQLite store for about twenty seconds. The store is kept."""

from __future__ import annotations

import asyncio
import logging
import math
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from millrace.cli import exits
from millrace.cli.output import Output
from millrace.cli.paths import path_option
from millrace.cli.session import CommandSession
from millrace.domain.errors import InvalidInput

if TYPE_CHECKING:
    from millrace.demo.run import Demo, DemoSettings

EXAMPLES = {
    "demo": (
        "Examples:\n"
        "  millrace demo\n"
        "  millrace demo --seconds 60 --jobs 20000\n"
        "  millrace demo --no-open                        without the dashboard in a browser\n"
        "  millrace demo --dir shop --seed 7              keep the store in ./shop\n"
        "  millrace demo --seconds 5 --json | jq .audit",
        "The store is kept, so that you can try the other commands on it; the summary lists some.\n"
        "Exit code 0 means that the audit of every job's history found no error.",
    )
}
LEAST, MOST = 3.0, 600.0


async def demo(
    session: CommandSession,
    seconds: Annotated[float, typer.Option("--seconds", help="Duration in seconds, 3 to 600.", metavar="N")] = 20.0,
    jobs: Annotated[
        int | None,
        typer.Option("--jobs", min=60, max=100_000, help="About how many jobs (default 40 per second).", metavar="N"),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed for the random jobs and failures.", metavar="N")] = 1,
    directory: Annotated[
        str | None, path_option("--dir", "FOLDER", "Folder for the store (default: a new temporary one).", str)
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show which jobs would be created, and run none.")] = False,
    report: Annotated[
        bool | None,
        typer.Option("--report/--no-report", help="Write a report with Spark (default without --json)."),
    ] = None,
    open_browser: Annotated[
        bool | None,
        typer.Option("--open/--no-open", help="Open the dashboard in a browser (default on a terminal)."),
    ] = None,
) -> int:
    """Run a small web shop for some seconds, with retries, dead letters and a killed worker, then audit every job."""
    if not (math.isfinite(seconds) and LEAST <= seconds <= MOST):
        raise InvalidInput(f"--seconds must be from {LEAST:g} to {MOST:g}, not {seconds:g}")
    for name in ("url", "app"):
        if session.settings.values[name].origin == "flag":
            raise InvalidInput(f"the demo creates its own store and app; remove --{name}, or use --dir")
    from millrace.demo.workload import LEAST_JOBS, PER_SECOND

    count = max(LEAST_JOBS, round(PER_SECOND * seconds)) if jobs is None else jobs
    _refuse_folder(directory)
    if dry_run:
        return _plan(session, seconds, count, seed)
    from millrace.demo.run import DemoSettings

    wanted = not session.output.json if report is None else report
    return await _run(session, DemoSettings(seconds, count, seed, _folder(directory)), wanted, open_browser)


async def _run(session: CommandSession, settings: DemoSettings, report: bool, open_browser: bool | None) -> int:
    from millrace.cli.demo.lines import DemoLines
    from millrace.cli.demo.report import make_page
    from millrace.cli.demo.screen import Screen
    from millrace.cli.demo.summary import print_serve, print_summary
    from millrace.demo.figures import summary
    from millrace.demo.run import Demo
    from millrace.worker.signals import on_stop_signal

    output, run = session.output, Demo(settings)
    shows = Screen(run) if output.terminal and not output.json else DemoLines(run, quiet=output.json)
    try:
        with _logged(settings.folder), on_stop_signal(_Interrupts(run)):
            async with _dashboard(output, settings.url, open_browser):
                with shows:
                    await run.run(shows.frame)
    except asyncio.CancelledError:  # the second Ctrl-C
        output.say(f"Stopped. The jobs so far are kept: millrace queues --url {settings.url}")
        return exits.INTERRUPTED
    plain = summary(run)
    if not output.json:
        print_summary(plain, output)
    page = await make_page(output, settings) if report and not run.interrupted else None
    if output.json:
        output.document(plain | ({"report": page} if report else {}))
    else:
        print_serve(settings.url)
    if not plain["ok"]:
        return exits.NO
    return exits.INTERRUPTED if run.interrupted else exits.OK


@asynccontextmanager
async def _dashboard(output: Output, url: str, open_browser: bool | None) -> AsyncIterator[None]:
    """Serve the dashboard inside this block, if the packages for it are installed, and open it in a browser. Without a
    terminal, do this only with --open.
    """
    from millrace.cli.demo.dashboard import browser, dashboard, has_web

    wanted = output.terminal and not output.json if open_browser is None else open_browser or output.terminal
    if not wanted or not has_web():
        yield
        return
    async with dashboard(url) as address:
        window = None if open_browser is False else browser()
        opened = window is not None and await asyncio.to_thread(window.open, address)
        output.say(f"Dashboard: {address} " + ("(opened in your browser)" if opened else "(open it in a browser)"))
        yield


class _Interrupts:
    """Handles Ctrl-C. The first Ctrl-C stops the demo, which still prints its summary. The second one cancels the
    demo.
    """

    def __init__(self, run: Demo) -> None:
        self._run = run
        self._task = asyncio.current_task()

    def __call__(self) -> None:
        if self._run.stopping.is_set() and self._task is not None:
            self._task.cancel()
        self._run.stop()


def _plan(session: CommandSession, seconds: float, jobs: int, seed: int) -> int:
    from millrace.demo.workload import draw

    tasks = sorted(draw(seconds, jobs, seed).tasks.items())
    if session.output.json:
        session.output.document({"seconds": seconds, "seed": seed, "jobs": jobs, "tasks": dict(tasks)})
    else:
        session.output.table(("task", "jobs"), tasks)
    return exits.OK


def _refuse_folder(name: str | None) -> None:
    if name is None:
        return
    from millrace.demo.run import FILE

    try:
        folder = Path(name)
        if folder.exists() and not folder.is_dir():
            raise InvalidInput(f"--dir {name!r} is a file; name a folder")
        taken = (folder / FILE).exists()
    except (OSError, ValueError) as error:
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput(f"--dir {name!r} cannot be a folder: {error}") from None
    if not name.strip() or taken:
        why = f"already contains a demo ({FILE}), which is not overwritten" if taken else "has no name"
        raise InvalidInput(f"the folder {name!r} {why}. Choose another --dir.")


def _folder(name: str | None) -> Path:
    if name is None:
        return Path(tempfile.mkdtemp(prefix="millrace-demo-"))
    folder = Path(name).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def _logged(folder: Path) -> Iterator[None]:
    """Write millrace's log to demo.log in this folder, so that log lines do not overwrite the screen."""
    log = logging.getLogger("millrace")
    handler = logging.FileHandler(folder / "demo.log", encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(message)s"))
    before = log.propagate, log.level
    log.addHandler(handler)
    log.propagate = False
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        handler.close()
        log.propagate, log.level = before
