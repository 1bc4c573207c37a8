"""`millrace move`: moves all jobs, schedules and settings of a store to another store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from typing import Annotated, Any

import typer

from millrace.app.format import plural
from millrace.cli import exits
from millrace.cli.output import Output
from millrace.cli.session import NO_STORE, CommandSession
from millrace.cli.store_url import require_store
from millrace.cli.text import duration
from millrace.domain.errors import InvalidInput, StoreNotFound
from millrace.domain.request import QueueCounts
from millrace.store.connect import connect
from millrace.store.memory import MemoryStore
from millrace.store.protocol import Store
from millrace.store.transfer import BATCH, Progress, StoreTransfer, TransferReport, plain_url, total
from millrace.store.transfer import abort as end_move

STATES = ("waiting", "running", "completed", "dead", "cancelled")
EXAMPLES = {
    "move": (
        "Examples:\n"
        "  millrace move --from sqlite:///jobs.db --to postgresql://host/db --dry-run\n"
        "  millrace move --from sqlite:///jobs.db --to postgresql://host/db\n"
        "  millrace move --from sqlite:///jobs.db --abort",
        "If it was interrupted, run it again. Workers may run meanwhile; afterwards, start them with the new URL.",
    )
}


async def move(
    session: CommandSession,
    target: Annotated[
        str | None,
        typer.Option("--to", help="The new store, which must be empty.", metavar="URL", show_default=False),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option("--from", help="The old store. Default: the configured one.", metavar="URL", show_default=False),
    ] = None,
    wait: Annotated[str, typer.Option("--wait", help="How long running jobs may take to end.")] = "5m",
    batch: Annotated[int, typer.Option("--batch", help="Records per step, at most.", min=1, max=10_000)] = BATCH,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be moved.")] = False,
    abort: Annotated[
        bool, typer.Option("--abort", help="End an unfinished move and open the old store again.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="With --abort: open even the old store of a finished move.")
    ] = False,
) -> int:
    """Move all jobs to another store, with history and results, schedules and settings.

    No job is lost, and none can be claimed in both stores. An interrupted move continues when the command is run again.
    Afterwards the old store refuses every change and names the new one. Exit 1 if there is no move to abort.
    With --abort --force, the old store opens with its jobs as they were when they were moved. Jobs that have run in the
    new store since then run again, and jobs enqueued there are missing.
    """
    if abort and dry_run:
        raise InvalidInput("--abort and --dry-run exclude each other")
    old = source or session.settings["url"]
    if old is None:
        raise InvalidInput(NO_STORE)
    if force and not abort:
        raise InvalidInput("--force is only for --abort")
    patience = duration("--wait", wait) / 1000
    require_store(old)
    if abort:  # the new store may be lost
        async with _opened(session, old) as mine:
            return await _abort(session.output, mine, force)
    if target is None:
        raise InvalidInput("--to is missing: pass the URL of the new store")
    if dry_run:
        await _plan(session, old, target)
        return exits.OK
    async with _opened(session, old) as mine, _opened(session, target) as theirs:
        with _shown(session.output) as progress:
            report = await StoreTransfer(mine, theirs, wait=patience, batch=batch, progress=progress).run()
        _write(session.output, report, mine.url, theirs.url)
    return exits.OK


async def _plan(session: CommandSession, old: str, target: str) -> None:
    """Show what would be moved. Both stores are opened with read access, so that nothing is created or upgraded."""
    async with AsyncExitStack() as stack:
        mine = await stack.enter_async_context(_opened(session, old, reads=True))
        created = False
        try:
            theirs = await stack.enter_async_context(_opened(session, target, reads=True))
        except StoreNotFound:
            theirs, created = MemoryStore(connect(target, env=session.environment()).url), True
        report = await StoreTransfer(mine, theirs).plan()
        _write(session.output, report, plain_url(mine), plain_url(theirs), plan=True, created=created)


@asynccontextmanager
async def _opened(session: CommandSession, url: str, *, reads: bool = False) -> AsyncIterator[Store]:
    store = connect(url, env=session.environment())
    if reads:
        store = store.for_reading()
    await store.connect()
    try:
        yield store
    finally:
        await store.close()


@contextmanager
def _shown(output: Output) -> Iterator[Progress]:
    """Show a progress bar for each stage, if there is a terminal."""
    with ExitStack() as stack:
        stage: list[Any] = [None, None]

        def progress(what: str, done: int, of: int) -> None:
            if stage[0] != what:
                stack.close()
                stage[:] = what, stack.enter_context(output.progress(what, of))
            stage[1](done)

        yield progress


async def _abort(output: Output, store: Store, force: bool) -> int:
    aborted = await end_move(store, force)
    if output.json:
        output.document({"from": store.url, "aborted": aborted})
    output.say(f"{store.url} is open again." if aborted else f"{store.url} is not being moved.")
    return exits.OK if aborted else exits.NO


def _write(
    output: Output, report: TransferReport, source: str, target: str, *, plan: bool = False, created: bool = False
) -> None:
    if output.json:
        output.document(
            {
                "from": source,
                "to": target,
                "dry_run": plan,
                "jobs": report.jobs,
                "schedules": report.schedules,
                "imported": report.imported,
                "queues": [_queue(counts) for counts in report.queues],
            }
        )
        return
    rows = [[counts.queue, *(getattr(counts, state) for state in STATES), total(counts)] for counts in report.queues]
    output.table(["queue", *STATES, "jobs"], rows)
    what = f"{plural(report.jobs, 'job')} and {plural(report.schedules, 'schedule')}"
    if not plan:
        output.say(f"{what} moved to {target}. Start workers, producers and schedulers with this URL.")
        return
    place = f"{target}, which would be created" if created else target
    output.say(f"{what} would be moved to {place}. Nothing was changed.")


def _queue(counts: QueueCounts) -> dict[str, Any]:
    return {"queue": counts.queue, **{state: getattr(counts, state) for state in STATES}}
