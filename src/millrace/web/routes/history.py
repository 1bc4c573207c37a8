"""The history of a job over HTTP: its events, what each event changed, and the changes between any two events."""

from __future__ import annotations

from bisect import bisect_right

from millrace.app.telemetry.redaction import failure_without, off_loop
from millrace.domain.errors import InvalidInput, JobNotFound
from millrace.domain.event import Event
from millrace.views.timeline import Changed, ChangeView, change_view, changes, facts_after
from millrace.web import requests, responses
from millrace.web.event_redactor import EventRedactor
from millrace.web.operation import Link, Request, Routes
from millrace.web.responses import HistoryStep

routes = Routes()


@routes.get(
    "/api/jobs/{id}/history",
    "viewer",
    "Every step of a job and what it changed, oldest first, a page at a time",
    cli="history ID --diff",
    query=requests.HistoryQuery,
    problems=(404,),
    links=(Link("next", "getHistory", {"id": "$response.body#/id", "cursor": "$response.body#/cursor"}),),
)
async def get_history(request: Request) -> responses.JobHistory:
    """Return the events of a job, each with the fields that it changed. The changes are computed from the events
    alone.
    """
    events, redactor = await _events(request)
    after = request.query.cursor
    start = 0 if after is None else bisect_right(events, _number(after), key=lambda event: (event.generation, event.n))
    end = min(start + request.query.limit, len(events))

    def steps() -> list[HistoryStep]:
        facts = facts_after(events[:end])
        made: list[HistoryStep] = []
        for at in range(start, end):
            found = changes(facts[at - 1] if at else None, facts[at])
            shown = _change_views(found, events[max(0, at - 1)], events[at], redactor)
            made.append(HistoryStep(redactor.view(events[at]), shown))
        return made

    made = await off_loop(redactor.size(events[:end]), steps)
    cursor = f"{events[end - 1].generation}:{events[end - 1].n}" if end < len(events) else None
    return responses.JobHistory(request.path["id"], made, cursor)


@routes.get(
    "/api/jobs/{id}/history/diff",
    "viewer",
    "What changed between two events of a job",
    cli="history ID --diff --from --to",
    query=requests.DiffQuery,
    problems=(404,),
)
async def diff_history(request: Request) -> responses.HistoryDifference:
    events, redactor = await _events(request)
    numbers = [f"{event.generation}:{event.n}" for event in events]
    start = _place(numbers, "from", request.query.first, 0)
    end = _place(numbers, "to", request.query.last, len(events) - 1)

    def difference() -> responses.HistoryDifference:
        facts = facts_after(events)
        shown = _change_views(changes(facts[start], facts[end]), events[start], events[end], redactor)
        return responses.HistoryDifference(redactor.view(events[start]), redactor.view(events[end]), shown)

    return await off_loop(redactor.size(events), difference)


async def _events(request: Request) -> tuple[list[Event], EventRedactor]:
    job_id = request.path["id"]
    store = await request.server.app.connected()
    events = await store.history(job_id)
    if not events:
        raise JobNotFound(job_id)
    return events, EventRedactor(request.server, await store.get([job_id]))


def _change_views(found: list[Changed], first: Event, last: Event, redactor: EventRedactor) -> list[ChangeView]:
    return [change_view(_redacted(one, first, last, redactor) if one.fact == "error" else one) for one in found]


def _redacted(one: Changed, first: Event, last: Event, redactor: EventRedactor) -> Changed:
    before, after = redactor.secrets(first), redactor.secrets(last)
    return Changed(one.fact, failure_without(one.before, before), failure_without(one.after, after))


def _number(text: str) -> tuple[int, int]:
    generation, _, n = text.partition(":")
    return int(generation), int(n)


def _place(numbers: list[str], what: str, text: str | None, default: int) -> int:
    if text is None:
        return default
    wanted = text if ":" in text else f"{numbers[-1].partition(':')[0]}:{text}"
    if wanted not in numbers:
        raise InvalidInput(f"{what}={text}: there is no such event; this job has {numbers[0]} to {numbers[-1]}")
    return numbers.index(wanted)
