"""The history of a job over HTTP: each step and what it changed, and what changed between any two."""

from __future__ import annotations

from millrace.domain.check import check_id
from millrace.domain.errors import InvalidInput, JobNotFound
from millrace.domain.event import Event
from millrace.domain.job import Job
from millrace.runtime.facts import Changed, changed_plain, changes, facts_after
from millrace.runtime.redaction import failure_without
from millrace.runtime.shape import Plain
from millrace.web import given, taken
from millrace.web.house import House
from millrace.web.route import Answer, Asked, Route
from millrace.web.shown import secrets_behind, shown_event


async def history(asked: Asked) -> Answer:
    """Each step with what it changed; what a job was in between is told by the events alone."""
    events, job = await _events(asked)
    facts = facts_after(events)
    steps = [
        {
            "event": shown_event(event, job, asked.house),
            "changes": _changes(changes(facts_before, known), before, event, job, asked.house),
        }
        for before, facts_before, event, known in zip([events[0], *events], [None, *facts], events, facts, strict=False)
    ]
    return Answer({"id": asked.path["id"], "steps": steps})


async def diff(asked: Asked) -> Answer:
    events, job = await _events(asked)
    numbers = [f"{event.generation}:{event.n}" for event in events]
    start = _place(numbers, "from", asked.query.first, 0)
    end = _place(numbers, "to", asked.query.last, len(events) - 1)
    facts = facts_after(events)
    return Answer(
        {
            "from": shown_event(events[start], job, asked.house),
            "to": shown_event(events[end], job, asked.house),
            "changes": _changes(changes(facts[start], facts[end]), events[start], events[end], job, asked.house),
        }
    )


async def _events(asked: Asked) -> tuple[list[Event], Job | None]:
    job_id = asked.path["id"]
    check_id("id", job_id)
    events = await asked.house.app.jobs.history(job_id)
    if not events:
        raise JobNotFound(job_id)
    return events, await asked.house.app.jobs.get(job_id)


def _changes(found: list[Changed], first: Event, last: Event, job: Job | None, house: House) -> list[Plain]:
    return [changed_plain(_hidden(one, first, last, job, house) if one.fact == "error" else one) for one in found]


def _hidden(one: Changed, first: Event, last: Event, job: Job | None, house: House) -> Changed:
    before, after = secrets_behind(first, job, house), secrets_behind(last, job, house)
    return Changed(one.fact, failure_without(one.before, before), failure_without(one.after, after))


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
        "Every step of a job and what it changed, oldest first",
        history,
        cli="history ID --diff",
        answers={200: given.History},
        refusals=(404,),
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
