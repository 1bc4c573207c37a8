"""One action on many jobs. With a filter, a dry run counts the jobs first. If more jobs match later than the dry run
counted, nothing is changed.
"""

from __future__ import annotations

from collections import Counter

import msgspec

from millrace.app.format import instant, plural
from millrace.domain.errors import InvalidInput
from millrace.domain.rules.check import check_id
from millrace.views.bulk import BATCH, BulkAction, MatchedJobs, bulk_action
from millrace.views.filters import matching, read_query
from millrace.web import requests, responses
from millrace.web.deadline import with_deadline
from millrace.web.guard import may
from millrace.web.operation import Request, Routes
from millrace.web.problem import Problem, as_problem

MOST = 100_000
SAMPLE = 20
routes = Routes()


@routes.post(
    "/api/bulk",
    "operator",
    "Cancel, replay, archive, unarchive or (as admin) delete many jobs, by id or by filter; by filter, the dry run "
    "comes first",
    cli="replay ID --dry-run --yes --queue --error",
    body=requests.Bulk,
    problems=(409,),
    own_deadline=True,
)
async def act_on_jobs(request: Request) -> responses.BulkResult:
    body: requests.Bulk = request.body
    if (body.ids is None) == (body.chosen is None):
        raise InvalidInput("which jobs? Give `ids` or `filter`, one of them")
    action = bulk_action(body.action, also_running=body.running == "request", children=body.children)
    if body.action == "delete" and not may(request.caller.role, "admin"):
        raise Problem(403, "role", f"deleting needs the role admin, but the caller has the role {request.caller.role}")
    request.details |= {"action": body.action, "dry_run": body.dry_run}
    if body.chosen is not None:
        request.details["filter"] = {
            name: value for name, value in requests.given(body.chosen).items() if value is not None
        }
        now = await (await request.server.app.connected()).now()
        chosen = _as_of(now, action, body.chosen) if body.dry_run else body.chosen
        found = await _found(request, action, chosen, now)
    else:
        chosen = None
        found = MatchedJobs(body.ids or ())
        for job_id in found.ids:
            check_id("id", job_id)
        request.details["ids"] = found.ids[:SAMPLE]
    request.details["matched"] = len(found)
    answers: Counter[str] = Counter()
    if not body.dry_run:
        _refuse_unexpected(body, len(found))
        request.details["answers"] = answers  # the audit log has the answers so far, even if the action is interrupted
        try:
            async for part in found.act(request.server.app, action, with_deadline):
                answers.update(answer for _, answer in part)
        except Exception as error:
            if not answers:
                raise
            raise _interrupted(error, action, len(found), answers) from error
    return responses.BulkResult(
        action=body.action,
        dry_run=body.dry_run,
        matched=len(found),
        filter=chosen,
        sample=found.ids[:SAMPLE],
        answers=dict(answers),
        done=_done(action, answers),
    )


def _done(action: BulkAction, answers: Counter[str]) -> int:
    return sum(count for answer, count in answers.items() if answer in action.done)


def _interrupted(error: Exception, action: BulkAction, matched: int, answers: Counter[str]) -> Problem:
    problem = as_problem(error)
    return Problem(
        problem.status,
        problem.code,
        f"{problem.detail}\nThe action was interrupted: {answers.total():,} of {plural(matched, 'job')} have an "
        f"answer, and up to {BATCH:,} more may have been {action.past} without one. Check with dry_run=true.",
        headers=problem.headers,
        matched=matched,
        answers=dict(answers),
        done=_done(action, answers),
    )


def _as_of(now: int, action: BulkAction, chosen: requests.JobFilter) -> requests.JobFilter:
    """Return the filter, limited to jobs that exist at `now`, for a later request. For an action on finished jobs, it
    excludes jobs that finish later; for other actions, jobs that are enqueued later. Relative times become absolute.
    """
    _refuse_empty(chosen)
    query = read_query(chosen, now, bool(action.archived))
    times = {
        "since": query.enqueued_from,
        "until": query.enqueued_to,
        "finished_from": query.finished_from,
        "finished_to": query.finished_to,
    }
    bound = "finished_to" if action.ended else "until"
    times[bound] = min(now + 1, times[bound] or now + 1)
    return msgspec.structs.replace(chosen, **{name: instant(at) for name, at in times.items() if at is not None})


def _refuse_empty(chosen: requests.JobFilter) -> None:
    if all(value is None for value in requests.given(chosen).values()):
        raise InvalidInput("an empty filter matches every job; name at least a status or a queue")


async def _found(request: Request, action: BulkAction, chosen: requests.JobFilter, now: int) -> MatchedJobs:
    _refuse_empty(chosen)
    server = request.server
    queries = action.queries(read_query(chosen, now, bool(action.archived)))
    found = MatchedJobs(queries=queries)
    for query in queries:
        async for job in matching(server.app, query, chosen.error):
            found.see(job)
            if len(found) > MOST:
                raise Problem(
                    409,
                    "too_many",
                    f"more than {MOST:,} jobs match. "
                    f"Narrow the filter, or use: millrace pipeline {action.verb} --where …",
                )
    return found


def _refuse_unexpected(body: requests.Bulk, matched: int) -> None:
    if body.chosen is None:
        return
    if body.expect is None:
        raise InvalidInput(
            "send a dry run first: dry_run=true, then repeat the `filter` that it returns, with its count as `expect`"
        )
    if matched > body.expect:
        raise Problem(
            409,
            "more_than_expected",
            f"{plural(matched, 'job matches', 'jobs match')} now, but {body.expect:,} were expected. Nothing was "
            "changed; check again with dry_run=true.",
            matched=matched,
        )
