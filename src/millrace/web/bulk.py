"""One deed for many jobs. By filter, it is counted first: what is done is at most what somebody saw and agreed to."""

from __future__ import annotations

from collections import Counter

from millrace.domain.check import check_id
from millrace.domain.errors import InvalidInput
from millrace.runtime.deeds import BATCH, Deed, deed_of
from millrace.runtime.selection import matching, read_query
from millrace.runtime.words import plural
from millrace.web import given, taken
from millrace.web.problem import Problem
from millrace.web.route import Answer, Asked, Route

MOST = 100_000
SAMPLE = 20


async def bulk(asked: Asked) -> Answer:
    body: taken.Bulk = asked.body
    if (body.ids is None) == (body.chosen is None):
        raise InvalidInput("which jobs? Give `ids` or `filter`, one of them")
    deed = deed_of(body.action, also_running=body.running == "request")
    if body.ids is not None:
        found = list(dict.fromkeys(body.ids))
        for job_id in found:
            check_id("id", job_id)
    else:
        assert body.chosen is not None
        found = await _found(asked, deed, body.chosen)
    asked.facts |= {"action": body.action, "matched": len(found), "dry_run": body.dry_run}
    if body.chosen is not None:
        asked.facts["filter"] = taken.given(body.chosen)
    answers: Counter[str] = Counter()
    if not body.dry_run:
        _refuse_unexpected(body, len(found))
        for start in range(0, len(found), BATCH):
            answers.update(map(str, await deed.ask(asked.house.app, found[start : start + BATCH])))
        asked.facts["answers"] = dict(answers)
    return Answer(
        {
            "action": body.action,
            "dry_run": body.dry_run,
            "matched": len(found),
            "sample": found[:SAMPLE],
            "answers": dict(answers),
            "done": sum(count for answer, count in answers.items() if answer in deed.done),
        }
    )


async def _found(asked: Asked, deed: Deed, chosen: taken.Chosen) -> list[str]:
    if all(value is None for value in taken.given(chosen).values()):
        raise InvalidInput("an empty filter means every job there is; name at least a status or a queue")
    house = asked.house
    now = await (await house.store()).now()
    found: list[str] = []
    for query in deed.queries(read_query(chosen, now, deed.archived)):
        async for job in matching(house.app, query, chosen.error):
            if len(found) >= MOST:
                raise Problem(
                    409,
                    "too_many",
                    f"more than {MOST:,} jobs fit. Narrow the filter, or use: millrace pipeline {deed.verb} --where …",
                )
            found.append(job.id)
    return found


def _refuse_unexpected(body: taken.Bulk, matched: int) -> None:
    if body.chosen is None:
        return
    if body.expect is None:
        raise InvalidInput("look first: ask with dry_run=true, then repeat the count that it answers as `expect`")
    if matched > body.expect:
        raise Problem(
            409,
            "more_than_expected",
            f"{plural(matched, 'job fits', 'jobs fit')} by now, and {body.expect:,} were expected. Nothing was done: "
            "look again with dry_run=true.",
            matched=matched,
        )


ROUTES = (
    Route(
        "actOnJobs",
        "POST",
        "/api/bulk",
        "operator",
        "Cancel, replay, archive or unarchive many jobs, by id or by filter; by filter, the dry run comes first",
        bulk,
        cli="replay ID --dry-run --yes --queue --error",
        body=taken.Bulk,
        answers={200: given.Bulk},
        refusals=(409,),
    ),
)
