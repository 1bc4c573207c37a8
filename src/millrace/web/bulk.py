"""One deed for many jobs. By filter, it is counted first: what is done is at most what somebody saw and agreed to."""

from __future__ import annotations

import logging
from collections import Counter

from millrace.domain.check import check_id
from millrace.domain.errors import InvalidInput
from millrace.runtime.deeds import BATCH, Deed, Found, deed_of
from millrace.runtime.selection import matching, read_query
from millrace.runtime.words import plural
from millrace.web import given, taken
from millrace.web.deadline import patiently
from millrace.web.problem import Problem, problem_of
from millrace.web.route import Answer, Asked, Route

log = logging.getLogger("millrace.web")
MOST = 100_000
SAMPLE = 20


async def bulk(asked: Asked) -> Answer:
    body: taken.Bulk = asked.body
    if (body.ids is None) == (body.chosen is None):
        raise InvalidInput("which jobs? Give `ids` or `filter`, one of them")
    deed = patiently(deed_of(body.action, also_running=body.running == "request"))
    asked.facts |= {"action": body.action, "dry_run": body.dry_run}
    if body.chosen is not None:
        asked.facts["filter"] = {name: value for name, value in taken.given(body.chosen).items() if value is not None}
        found = await _found(asked, deed, body.chosen)
    else:
        found = Found(body.ids or ())
        for job_id in found.ids:
            check_id("id", job_id)
        asked.facts["ids"] = found.ids[:SAMPLE]
    asked.facts["matched"] = len(found)
    answers: Counter[str] = Counter()
    if not body.dry_run:
        _refuse_unexpected(body, len(found))
        asked.facts["answers"] = answers  # noted with what it holds by then, also when the deed breaks off
        try:
            async for part in found.act(asked.house.app, deed):
                answers.update(answer for _, answer in part)
        except Exception as error:
            if not answers:
                raise
            raise _broken_off(error, deed, len(found), answers) from error
    return Answer(
        {
            "action": body.action,
            "dry_run": body.dry_run,
            "matched": len(found),
            "sample": found.ids[:SAMPLE],
            "answers": dict(answers),
            "done": _done(deed, answers),
        }
    )


def _done(deed: Deed, answers: Counter[str]) -> int:
    return sum(count for answer, count in answers.items() if answer in deed.done)


def _broken_off(error: Exception, deed: Deed, matched: int, answers: Counter[str]) -> Problem:
    problem = problem_of(error)
    if problem is None:
        log.error("a deed for many jobs broke off for a reason nobody foresaw", exc_info=error)
        problem = Problem(500, "defect", "something went wrong that nobody foresaw; the server's log has more")
    return Problem(
        problem.status,
        problem.code,
        f"{problem.detail}\nIt broke off: {answers.total():,} of {plural(matched, 'job')} have answered, and up to "
        f"{BATCH:,} more may have been {deed.past} without an answer. Look again with dry_run=true.",
        headers=problem.headers,
        matched=matched,
        answers=dict(answers),
        done=_done(deed, answers),
    )


async def _found(asked: Asked, deed: Deed, chosen: taken.Chosen) -> Found:
    if all(value is None for value in taken.given(chosen).values()):
        raise InvalidInput("an empty filter means every job there is; name at least a status or a queue")
    house = asked.house
    now = await (await house.store()).now()
    queries = deed.queries(read_query(chosen, now, deed.archived))
    found = Found(queries=queries)
    for query in queries:
        async for job in matching(house.app, query, chosen.error):
            found.see(job)
            if len(found) > MOST:
                raise Problem(
                    409,
                    "too_many",
                    f"more than {MOST:,} jobs fit. Narrow the filter, or use: millrace pipeline {deed.verb} --where …",
                )
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
        long=True,
        cli="replay ID --dry-run --yes --queue --error",
        body=taken.Bulk,
        answers={200: given.Bulk},
        refusals=(409,),
    ),
)
