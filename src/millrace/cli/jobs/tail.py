"""`millrace tail`: prints the events of the store as they happen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import msgspec
import typer

from millrace.app.app import App
from millrace.app.format import instant, span
from millrace.cli import exits
from millrace.cli.output import Cell, Word
from millrace.cli.session import CommandSession
from millrace.cli.text import clock, cut
from millrace.domain.errors import InvalidInput
from millrace.domain.event import Event, Kind
from millrace.domain.request import EventPage
from millrace.store.protocol import Store
from millrace.views.timeline import EventView, event_view

EXAMPLES = {
    "tail": (
        "Examples:\n"
        "  millrace tail\n"
        "  millrace tail --queue mail --kind buried --kind retried\n"
        "  millrace tail --json --cursor 1842-x9f3a77c1  continue after the last line with a cursor\n"
        "  millrace tail --all --no-follow --json > history.jsonl",
        "Events may repeat after a resume; (job, generation, n) identifies each one.",
    )
}
PAGE = 5_000
LOOK_BACK = 1_000


@dataclass
class Which:
    queue: Annotated[
        list[str] | None, typer.Option("--queue", "-q", help="Only events of this queue.", metavar="NAME")
    ] = None
    task: Annotated[
        list[str] | None, typer.Option("--task", "--type", help="Only events of this task.", metavar="NAME")
    ] = None
    job: Annotated[list[str] | None, typer.Option("--job", help="Only events of this job.", metavar="ID")] = None
    kind: Annotated[
        list[str] | None, typer.Option("--kind", help="Only events of this kind: enqueued, claimed, …", metavar="KIND")
    ] = None

    def __contains__(self, event: Event) -> bool:
        return (
            (not self.queue or event.queue in self.queue)
            and (not self.task or event.task in self.task)
            and (not self.job or event.job in self.job)
            and (not self.kind or event.kind in self.kind)
        )


async def tail(
    session: CommandSession,
    which: Which,
    lines: Annotated[
        int, typer.Option("--lines", "-n", min=0, max=100_000, metavar="N", help="Start with the last N events.")
    ] = 10,
    everything: Annotated[bool, typer.Option("--all", help="Start with the oldest event.")] = False,
    cursor: Annotated[str | None, typer.Option("--cursor", help="Start after this cursor.", metavar="CURSOR")] = None,
    follow: Annotated[bool, typer.Option("--follow/--no-follow", help="Keep following new events.")] = True,
    limit: Annotated[int | None, typer.Option("--limit", min=1, metavar="N", help="Stop after N events.")] = None,
) -> int:
    """Follow the events of all jobs as they happen.

    With --json, print one JSON document per line. Press Ctrl-C to stop.
    """
    unknown = sorted(set(which.kind or ()) - {kind.value for kind in Kind})
    if unknown:
        raise InvalidInput(f"there is no kind {unknown[0]!r}; known are: {', '.join(kind.value for kind in Kind)}")
    if cursor is not None and everything:
        raise InvalidInput("--cursor and --all cannot be used together")
    async with session.connected() as (app, store):
        printer = _Printer(session, which, limit)
        if cursor is None and not everything:
            cursor = (await store.events("end", 1)).cursor
            printer.page(EventPage(tuple(await _last(store, which, lines, cursor)), cursor))
        if not printer.full:
            await _follow(app, printer, cursor, follow)
    return exits.OK


async def _last(store: Store, which: Which, lines: int, end: str) -> list[Event]:
    """Return the last `lines` matching events before the cursor `end`, oldest first."""
    found: list[Event] = []
    cursor: str | None = end
    while cursor is not None and len(found) < lines:
        events, cursor = await store.events_before(cursor, LOOK_BACK)
        found += [event for _, event in events if event in which]
    return found[:lines][::-1]


async def _follow(app: App, printer: _Printer, cursor: str | None, follow: bool) -> None:
    try:
        async for page in app.events(cursor, follow=follow, page=PAGE).pages():
            printer.page(page)
            if printer.full:
                return
    except (OverflowError, ValueError) as wrong:
        if isinstance(wrong, InvalidInput):
            raise
        raise InvalidInput(f"{cursor!r} is not a cursor of this store. Pass one that the store returned.") from None


class TailedEvent(EventView):
    """One line of the output of `millrace tail --json`."""

    cursor: str | None


class _Printer:
    def __init__(self, session: CommandSession, which: Which, limit: int | None) -> None:
        self._output = session.output
        self._which = which
        self._left = limit

    @property
    def full(self) -> bool:
        return self._left == 0

    def page(self, page: EventPage) -> None:
        """Print the matching events of a page. With --json, the last event has the page's cursor, from which a later
        call can continue. If --limit cuts the page off, no event has a cursor.
        """
        shown = [event for event in page.events if event in self._which]
        whole = self._left is None or len(shown) <= self._left
        shown = shown if self._left is None else shown[: self._left]
        for event in shown:
            end = page.cursor if whole and event is shown[-1] else None
            if self._output.json:
                self._output.line(TailedEvent(**msgspec.structs.asdict(event_view(event)), cursor=end))
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
