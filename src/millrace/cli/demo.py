"""`millrace demo`: a small web shop on the embedded store, to watch for twenty seconds and to look into afterwards."""

from __future__ import annotations

import asyncio
import logging
import math
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from millrace.cli import exits
from millrace.cli.session import Session
from millrace.domain.errors import InvalidInput

if TYPE_CHECKING:
    from millrace.demo.run import Demo, Settings

EXAMPLES = {
    "demo": (
        "Examples:\n"
        "  millrace demo\n"
        "  millrace demo --seconds 60 --jobs 20000\n"
        "  millrace demo --dir shop --seed 7              keep the store in ./shop\n"
        "  millrace demo --seconds 5 --json | jq .audit",
        "The store is kept, so that the other commands have something to show; the summary says how.\n"
        "Exit code 0 means that the audit of every job's history found nothing wrong.",
    )
}
LEAST, MOST = 3.0, 600.0


async def demo(
    session: Session,
    seconds: Annotated[float, typer.Option("--seconds", help="About how long it takes, 3 to 600.", metavar="N")] = 20.0,
    jobs: Annotated[
        int | None,
        typer.Option("--jobs", min=60, max=100_000, help="About how many jobs (40 a second).", metavar="N"),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Another one draws other jobs and troubles.", metavar="N")] = 1,
    directory: Annotated[
        str | None, typer.Option("--dir", help="Where to keep the store (a new temporary folder).", metavar="FOLDER")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show which jobs there would be, and run none.")] = False,
    report: Annotated[
        bool | None,
        typer.Option("--report/--no-report", help="End with a page made by Spark; by default unless --json is given."),
    ] = None,
) -> int:
    """Run a small web shop for some seconds: retries, dead letters, a killed worker, and an audit of it all."""
    if not (math.isfinite(seconds) and LEAST <= seconds <= MOST):
        raise InvalidInput(f"--seconds must be from {LEAST:g} to {MOST:g}, not {seconds:g}")
    for name in ("url", "app"):
        if session.settings.values[name].origin == "flag":
            raise InvalidInput(f"the demo makes a store and an app of its own; leave out --{name}, or see --dir")
    from millrace.demo.workload import LEAST_JOBS, PER_SECOND

    count = max(LEAST_JOBS, round(PER_SECOND * seconds)) if jobs is None else jobs
    _refuse_folder(directory)
    if dry_run:
        return _plan(session, seconds, count, seed)
    from millrace.demo.run import Settings

    wanted = not session.output.json if report is None else report
    return await _run(session, Settings(seconds, count, seed, _folder(directory)), wanted)


async def _run(session: Session, settings: Settings, report: bool) -> int:
    from millrace.cli.demo_lines import Lines
    from millrace.cli.demo_report import make_page
    from millrace.cli.demo_screen import Screen
    from millrace.cli.demo_summary import tell
    from millrace.demo.figures import summary
    from millrace.demo.run import Demo
    from millrace.runtime.signals import heard_by

    output, run = session.output, Demo(settings)
    shows = Screen(run) if output.terminal and not output.json else Lines(run, quiet=output.json)
    try:
        with _logged(settings.folder), shows, heard_by(_Interrupts(run)):
            await run.run(shows.frame)
    except asyncio.CancelledError:  # by the second Ctrl-C
        output.say(f"Ended at once. What was done so far is kept: millrace queues --url {settings.url}")
        return exits.INTERRUPTED
    plain = summary(run)
    if not output.json:
        tell(plain, output)
    page = await make_page(output, settings) if report and not run.interrupted else None
    if output.json:
        output.document(plain | ({"report": page} if report else {}))
    if not plain["ok"]:
        return exits.NO
    return exits.INTERRUPTED if run.interrupted else exits.OK


class _Interrupts:
    """The first Ctrl-C ends the demo in good order, with its summary; the second ends it."""

    def __init__(self, run: Demo) -> None:
        self._run = run
        self._task = asyncio.current_task()

    def __call__(self) -> None:
        if self._run.stopping.is_set() and self._task is not None:
            self._task.cancel()
        self._run.stop()


def _plan(session: Session, seconds: float, jobs: int, seed: int) -> int:
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
        why = f"holds a demo already ({FILE}), and nothing is overwritten" if taken else "has no name"
        raise InvalidInput(f"the folder {name!r} {why}. Choose another --dir.")


def _folder(name: str | None) -> Path:
    if name is None:
        return Path(tempfile.mkdtemp(prefix="millrace-demo-"))
    folder = Path(name).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def _logged(folder: Path) -> Iterator[None]:
    """What the workers log goes to a file: on the screen it would run across the picture."""
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
