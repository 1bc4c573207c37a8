"""The history of a job over HTTP: each step and what it changed, and what changed between any two."""

from __future__ import annotations

from bisect import bisect_right

from millrace.domain.check import check_id
from millrace.domain.errors import InvalidInput, JobNotFound
from millrace.domain.event import Event
from millrace.runtime.facts import Changed, changed_plain, changes, facts_after
from millrace.runtime.redaction import failure_without
from millrace.runtime.shape import Plain
from millrace.web import given, taken
from millrace.web.route import Answer, Asked, Link, Route
from millrace.web.shown import Witnesses, aside


async def history(asked: Asked) -> Answer:
    """Each step with what it changed; what a job was in between is told by the events alone."""
    events, told = await _events(asked)
    after = asked.query.cursor
    start = 0 if after is None else bisect_right(events, _number(after), key=lambda event: (event.generation, event.n))
    end = min(start + asked.query.limit, len(events))

    def steps() -> list[Plain]:
        facts = facts_after(events[:end])
        return [
            {
                "event": told.shown(events[at]),
                "changes": _changes(
                    changes(facts[at - 1] if at else None, facts[at]), events[max(0, at - 1)], events[at], told
                ),
            }
            for at in range(start, end)
        ]

    made = await aside(told.weight(events[:end]), steps)
    cursor = f"{events[end - 1].generation}:{events[end - 1].n}" if end < len(events) else None
    return Answer({"id": asked.path["id"], "steps": made, "cursor": cursor})


async def diff(asked: Asked) -> Answer:
    events, told = await _events(asked)
    numbers = [f"{event.generation}:{event.n}" for event in events]
    start = _place(numbers, "from", asked.query.first, 0)
    end = _place(numbers, "to", asked.query.last, len(events) - 1)

    def difference() -> Plain:
        facts = facts_after(events)
        return {
            "from": told.shown(events[start]),
            "to": told.shown(events[end]),
            "changes": _changes(changes(facts[start], facts[end]), events[start], events[end], told),
        }

    return Answer(await aside(told.weight(events), difference))


async def _events(asked: Asked) -> tuple[list[Event], Witnesses]:
    job_id = asked.path["id"]
    check_id("id", job_id)
    events = await asked.house.app.jobs.history(job_id)
    if not events:
        raise JobNotFound(job_id)
    return events, Witnesses(asked.house, [await asked.house.app.jobs.get(job_id)])


def _changes(found: list[Changed], first: Event, last: Event, told: Witnesses) -> list[Plain]:
    return [changed_plain(_hidden(one, first, last, told) if one.fact == "error" else one) for one in found]


def _hidden(one: Changed, first: Event, last: Event, told: Witnesses) -> Changed:
    before, after = told.secrets(first), told.secrets(last)
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


ROUTES = (
    Route(
        "getHistory",
        "GET",
        "/api/jobs/{id}/history",
        "viewer",
        "Every step of a job and what it changed, oldest first, a page at a time",
        history,
        cli="history ID --diff",
        query=taken.HistoryQuery,
        answers={200: given.History},
        refusals=(404,),
        links=(Link("next", "getHistory", {"id": "$response.body#/id", "cursor": "$response.body#/cursor"}),),
    ),
    Route(
        "diffHistory",
        "GET",
        "/api/jobs/{id}/history/diff",
        "viewer",
        "What changed between two events of a job",
        diff,
        cli="history ID --diff --from --to",
        query=taken.DiffQuery,
        answers={200: given.Difference},
        refusals=(404,),
    ),
)
