"""`millrace history`: shows the events of one job, or what each event changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from millrace.app.format import instant
from millrace.cli import exits
from millrace.cli.jobs.history_versions import fact_cell, show_versions
from millrace.cli.output import At, Cell, StyledSpan, Word
from millrace.cli.session import CommandSession
from millrace.domain.errors import InvalidInput, JobNotFound
from millrace.domain.event import Event
from millrace.views.timeline import Changed, Facts, change_view, changes, event_view, facts_after

EXAMPLES = {
    "history": (
        "Examples:\n"
        "  millrace history mail-7\n"
        "  millrace history mail-7 --diff                 what each event changed\n"
        "  millrace history mail-7 --diff --from 2 --to 5 the difference between two events\n"
        "  millrace history mail-7 --from 1:1             also of an earlier generation of this id\n"
        "  millrace history mail-7 --versions --json      the whole record after each write (s3://, file://)\n"
        "  millrace history mail-7 --versions --diff --from 1 --to 3",
    )
}


async def history(
    session: CommandSession,
    job_id: Annotated[str, typer.Argument(metavar="ID", help="Id of a job.", show_default=False)],
    diff: Annotated[bool, typer.Option("--diff", help="Show the fields that each event changed.")] = False,
    first: Annotated[
        str | None, typer.Option("--from", metavar="[G:]N", help="From this event on: its n, of the last generation.")
    ] = None,
    last: Annotated[str | None, typer.Option("--to", metavar="[G:]N", help="Up to this event.")] = None,
    versions: Annotated[
        bool,
        typer.Option("--versions", help="s3:// and file:// only: the whole record after each write, by its rev."),
    ] = False,
) -> int:
    """Show everything that happened to a job.

    Events are shown oldest first, for all generations of the job. With --diff, show the fields that each event changed;
    add --from or --to to compare two events instead. With --versions, compare the stored versions of the job's record.
    """
    async with session.connected() as (app, store):
        if versions:
            return await show_versions(session, store, job_id, diff, first, last)
        events = await app.jobs.history(job_id)
        if not events:
            raise JobNotFound(job_id)
        now = await store.now()
    start, end = _place(events, "--from", first, 0), _place(events, "--to", last, len(events) - 1)
    if start > end:
        raise InvalidInput(f"--from {first} comes after --to {last or 'the last event'}; swap them")
    if diff:
        _differences(session, events, (start, end) if first or last else None, now)
    elif session.output.json:
        session.output.document([event_view(event) for event in events[start : end + 1]])
    else:
        names = ("n", "at", "kind", "state", "attempt", "worker", "took", "delay", "details")
        several = events[0].generation != events[-1].generation
        rows = [_row(event, now, several) for event in events[start : end + 1]]
        session.output.table(names, rows, spare=("worker", "took", "delay", "details"))
    return exits.OK


def _place(events: Sequence[Event], what: str, text: str | None, default: int) -> int:
    """Return the index of the event that `text` names as `n` or `generation:n`. If `text` is None, return `default`.
    Raises InvalidInput if there is no such event.
    """
    if text is None:
        return default
    generation, colon, n = text.rpartition(":")
    wanted = (generation if colon else str(events[-1].generation), n)
    for index, event in enumerate(events):
        if (str(event.generation), str(event.n)) == wanted:
            return index
    known = f"{events[0].generation}:{events[0].n} to {events[-1].generation}:{events[-1].n}"
    raise InvalidInput(f"{what} {text}: there is no such event; this job has {known}")


def _number(event: Event, several: bool) -> str:
    return f"{event.generation}:{event.n}" if several else str(event.n)


def _row(event: Event, now: int, several: bool) -> list[Cell]:
    details = event.reason or ""
    if event.error is not None:
        details = f"{details} {event.error.type}: {event.error.message}".strip()
    return [
        _number(event, several),
        At(event.at, now),
        Word(event.kind.value),
        Word(event.state),
        event.attempt,
        event.worker,
        StyledSpan(event.duration),
        StyledSpan(event.delay),
        details,
    ]


# ── differences ───────────────────────────────────────────────────────────────────────────────


def _differences(session: CommandSession, events: Sequence[Event], ends: tuple[int, int] | None, now: int) -> None:
    facts = facts_after(events)
    if ends is not None:
        start, end = ends
        compared: list[tuple[Event | None, Event, list[Changed]]]
        compared = [(events[start], events[end], changes(facts[start], facts[end]))]
    else:
        earlier: list[tuple[Event | None, Facts | None]] = [(None, None), *zip(events, facts, strict=True)][:-1]
        compared = [
            (before, event, changes(known, fact))
            for (before, known), event, fact in zip(earlier, events, facts, strict=True)
        ]
    if session.output.json:
        session.output.document([_difference(*one) for one in compared])
        return
    several = events[0].generation != events[-1].generation
    rows = [
        [
            _number(event, several),
            At(event.at, now),
            Word(event.kind.value),
            changed.fact,
            fact_cell(changed.fact, changed.before, now),
            fact_cell(changed.fact, changed.after, now),
        ]
        for _, event, found in compared
        for changed in found
    ]
    session.output.table(("n", "at", "kind", "fact", "before", "after"), rows)
    if not rows:
        session.output.hint("There is no difference between these two events.")


def _difference(before: Event | None, event: Event, found: list[Changed]) -> dict[str, Any]:
    return {
        "from": None if before is None else {"generation": before.generation, "n": before.n},
        "to": {"generation": event.generation, "n": event.n},
        "kind": event.kind.value,
        "at": instant(event.at),
        "changes": [change_view(changed) for changed in found],
    }
