"""`millrace tail`: follow what happens in the store, whoever does it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Annotated

import typer

from millrace.cli import exits
from millrace.cli.output import Cell, Word
from millrace.cli.session import Session
from millrace.cli.text import clock, cut, instant, span
from millrace.domain.errors import CursorExpired, InvalidInput
from millrace.domain.event import Event, Kind
from millrace.domain.request import EventPage
from millrace.runtime.app import App
from millrace.runtime.shape import event_plain
from millrace.store.protocol import Store

EXAMPLES = {
    "tail": (
        "Examples:\n"
        "  millrace tail\n"
        "  millrace tail --queue mail --kind buried --kind retried\n"
        "  millrace tail --json --cursor 1842            go on where the last line with a cursor ended\n"
        "  millrace tail --all --no-follow --json > history.jsonl",
        "Events may come again after a resume; (job, generation, n) tells them apart.",
    )
}
PAGE = 5_000
LOOK_BACK = 1_000


@dataclass
class Which:
    queue: Annotated[list[str] | None, typer.Option("--queue", "-q", help="Only of this queue.", metavar="NAME")] = None
    task: Annotated[list[str] | None, typer.Option("--task", "--type", help="Only of this task.", metavar="NAME")] = (
        None
    )
    job: Annotated[list[str] | None, typer.Option("--job", help="Only of this job.", metavar="ID")] = None
    kind: Annotated[
        list[str] | None, typer.Option("--kind", help="Only of this kind: enqueued, claimed, …", metavar="KIND")
    ] = None

    def __contains__(self, event: Event) -> bool:
        return (
            (not self.queue or event.queue in self.queue)
            and (not self.task or event.task in self.task)
            and (not self.job or event.job in self.job)
            and (not self.kind or event.kind in self.kind)
        )


async def tail(
    session: Session,
    which: Which,
    lines: Annotated[
        int, typer.Option("--lines", "-n", min=0, max=100_000, metavar="N", help="Begin with the last so many.")
    ] = 10,
    everything: Annotated[bool, typer.Option("--all", help="Begin with the oldest that is kept.")] = False,
    cursor: Annotated[str | None, typer.Option("--cursor", help="Begin after this one.", metavar="CURSOR")] = None,
    follow: Annotated[bool, typer.Option("--follow/--no-follow", help="Go on with what happens next.")] = True,
    limit: Annotated[int | None, typer.Option("--limit", min=1, metavar="N", help="Stop after so many.")] = None,
) -> int:
    """Follow events as they happen: every step of every job.

    With --json, one line each. Ctrl-C ends it.
    """
    unknown = sorted(set(which.kind or ()) - {kind.value for kind in Kind})
    if unknown:
        raise InvalidInput(f"there is no kind {unknown[0]!r}; known are: {', '.join(kind.value for kind in Kind)}")
    if cursor is not None and everything:
        raise InvalidInput("--cursor and --all both say where to begin; give one of them")
    async with session.connected() as (app, store):
        printer = _Printer(session, which, limit)
        if cursor is None and not everything:
            end = (await store.events("end", 1)).cursor
            last, cursor = await _last(store, which, lines, end) if lines else ([], end)
            printer.page(EventPage(tuple(last), cursor))
        if not printer.full:
            await _follow(app, printer, cursor, follow)
    return exits.OK


async def _last(store: Store, which: Which, lines: int, end: str) -> tuple[list[Event], str]:
    """The latest events that fit, and the cursor behind them: looked for from the end back, further each time."""
    back = max(LOOK_BACK, lines)
    while True:
        start = await _before(store, end, back)
        latest, cursor, whole = await _since(store, which, lines, start)
        if whole or len(latest) == lines:
            return latest, cursor
        back *= 8


async def _before(store: Store, end: str, back: int) -> str | None:
    """A cursor so many events before the end, where cursors are numbers; so many seconds, where the store finds events
    by their time; else None, the oldest kept."""
    cursor_at = getattr(store, "cursor_at", None)
    if cursor_at is not None:
        since = await store.now() - 1_000 * back
        return None if since <= 0 else str(cursor_at(since))
    return str(int(end) - back) if end.isascii() and end.isdigit() and int(end) > back else None


async def _since(store: Store, which: Which, lines: int, cursor: str | None) -> tuple[list[Event], str, bool]:
    """The latest that fit of those after the cursor, the cursor of the end, and whether nothing older is kept."""
    latest: deque[Event] = deque(maxlen=lines)
    whole = cursor is None
    while True:
        try:
            page = await store.events(cursor, PAGE)
        except CursorExpired as expired:  # retention is at work on the old end
            cursor, whole = expired.oldest, True
            continue
        latest.extend(event for event in page.events if event in which)
        cursor = page.cursor
        if not page.events:
            return list(latest), cursor, whole


async def _follow(app: App, printer: _Printer, cursor: str | None, follow: bool) -> None:
    try:
        async for page in app.events(cursor, follow=follow, page=PAGE).pages():
            printer.page(page)
            if printer.full:
                return
    except (OverflowError, ValueError) as wrong:
        if isinstance(wrong, InvalidInput):
            raise
        raise InvalidInput(f"{cursor!r} is not a cursor of this store; use one that it gave out") from None


class _Printer:
    def __init__(self, session: Session, which: Which, limit: int | None) -> None:
        self._output = session.output
        self._which = which
        self._left = limit

    @property
    def full(self) -> bool:
        return self._left == 0

    def page(self, page: EventPage) -> None:
        """The last event of a page carries the cursor behind it: whoever resumes from there misses nothing."""
        shown = [event for event in page.events if event in self._which]
        whole = self._left is None or len(shown) <= self._left
        shown = shown if self._left is None else shown[: self._left]
        for event in shown:
            end = page.cursor if whole and event is shown[-1] else None
            if self._output.json:
                self._output.line({**event_plain(event), "cursor": end})
            else:
                self._output.row(_row(event, self._output.terminal))
        if self._left is not None:
            self._left -= len(shown)


def _row(event: Event, terminal: bool) -> list[Cell]:
    return [
        clock(event.at) if terminal else instant(event.at),
        Word(f"{event.kind.value:<10}"),
        event.queue,
        event.task,
        event.job,
        f"attempt {event.attempt}" if event.attempt else None,
        _details(event),
    ]


def _details(event: Event) -> str:
    parts = [] if event.duration is None else [f"took {span(event.duration)}"]
    if event.delay:
        parts.append(f"due in {span(event.delay)}")
    if event.reason:
        parts.append(event.reason)
    if event.error is not None:
        parts.append(cut(f"{event.error.type}: {event.error.message}", 200))
    return ", ".join(parts)
