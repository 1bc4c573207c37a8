"""Jobs over HTTP: put in, look at, wait for, and act on, one at a time or many."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine
from contextlib import nullcontext
from typing import Any
from urllib.parse import quote

import msgspec

from millrace.domain.check import check_id
from millrace.domain.errors import JobCancelled, JobFailed, JobNotFound, ResultExpired, WaitTimeout
from millrace.domain.job import FINISHED, Job, State, word
from millrace.domain.request import Enqueued, Page
from millrace.runtime import waiting
from millrace.runtime.intake import Maker
from millrace.runtime.plain import refuse_unsafe
from millrace.runtime.redaction import failure_without
from millrace.runtime.secrets import NO_SECRETS, UNKNOWN
from millrace.runtime.selection import page_of, read_query
from millrace.runtime.shape import Plain, failure_plain
from millrace.runtime.why import why_waiting
from millrace.web import given, taken
from millrace.web.house import House
from millrace.web.route import Answer, Asked, Link, Route
from millrace.web.shown import all_listed, aside, result_shown, secrets, weight_of, whole

log = logging.getLogger("millrace.web")
ONE = 2 << 20  # a payload of the largest size, and some room for escapes in it
MANY = 16 << 20
PATIENCE = 0.1  # seconds after which a search answers with what it has, and a cursor
WHEN_QUEUED = 201
MOST_MAKERS = 1_000


# ── putting in ────────────────────────────────────────────────────────────────────────────────


async def enqueue(asked: Asked) -> Answer:
    new: taken.NewJob = asked.body
    wait = asked.query.wait
    with asked.house.waiting if wait else nullcontext():  # taken first: whoever is refused has put nothing in
        [answer] = await _put_in(asked, [new])
        plain = _enqueued(answer)
        if wait or answer.status == "completed":
            plain["outcome"] = await _outcome_if_told(asked.house, answer.id, wait)
    status = WHEN_QUEUED if answer.status == "queued" else 200
    return Answer(plain, status, {"location": f"jobs/{quote(answer.id, safe='')}"})


async def _outcome_if_told(house: House, job_id: str, wait: float) -> Plain | None:
    """The job is in, and its id is what the client must get, whatever goes wrong with the wait."""
    try:
        return await _outcome(house, job_id, wait)
    except ResultExpired:  # it is done; only what it answered is no longer kept
        return _ended(job_id, State.COMPLETED, None, "result_expired", None)
    except Exception as error:
        log.warning("job %s is in, but how it ended cannot be told: %s", job_id, error, exc_info=error)
        return None


async def enqueue_many(asked: Asked) -> Answer:
    answers = await _put_in(asked, asked.body.jobs)
    return Answer({"jobs": [_enqueued(answer) for answer in answers]}, WHEN_QUEUED)


async def _put_in(asked: Asked, jobs: list[taken.NewJob]) -> list[Enqueued]:
    app = asked.house.app
    specs = []
    for number, new in enumerate(jobs):
        where = "the payload" if len(jobs) == 1 else f"the payload of job {number}"
        refuse_unsafe(where, new.payload, finite=True, keys=False)
        specs += _maker(asked.house, new).specs(app, [new.payload])
    answers = await app.enqueue(specs)
    asked.facts |= {"jobs": len(answers), "ids": [answer.id for answer in answers[:10]]}
    return answers


def _maker(house: House, new: taken.NewJob) -> Maker:
    """Most jobs bring no options of their own, and share what is made for their task."""
    checked = None if new.unchecked or not house.app.tasks else house.app
    options = taken.given(new, taken.OPTIONS)
    if options:
        return Maker(checked, new.task, options)
    known = house.makers.get((new.task, new.unchecked))
    if known is None:
        known = Maker(checked, new.task, {})
        if len(house.makers) < MOST_MAKERS:
            house.makers[new.task, new.unchecked] = known
    return known


def _enqueued(answer: Enqueued) -> Plain:
    return {
        "status": answer.status,
        "id": answer.id,
        "seq": answer.seq,
        "generation": answer.generation,
        "state": answer.state.value,
        "by": answer.by,
        "payload_differs": answer.payload_differs,
        "lane": answer.lane,
        "position": answer.position,
        "depth": answer.depth,
        "outcome": None,
    }


# ── looking ───────────────────────────────────────────────────────────────────────────────────


async def list_jobs(asked: Asked) -> Answer:
    house, query = asked.house, asked.query
    store = await house.store()
    now = await store.now()
    if query.id:
        for job_id in query.id:
            check_id("id", job_id)
        found = [job for job in await house.app.jobs.get(query.id) if job is not None]
        return Answer({"jobs": await all_listed(found, now, house), "cursor": None, "scanned": len(found)})
    page = await _page(house, query, now)
    jobs = await all_listed(page.jobs, now, house)
    return Answer({"jobs": jobs, "cursor": page.cursor, "scanned": page.scanned})


async def _page(house: House, asked: taken.ListQuery, now: int) -> Page:
    """A full page; or, when that takes long, what was found until then and the cursor to go on from."""
    search = read_query(asked, now, archived=None if asked.all else False)
    jobs: list[Job] = []
    cursor, scanned = asked.cursor, 0
    until = time.monotonic() + PATIENCE
    while True:
        page = await page_of(
            house.app,
            msgspec.structs.replace(
                search, cursor=cursor, newest_first=not asked.oldest, limit=asked.limit - len(jobs)
            ),
            asked.error,
            asked.after,
        )
        jobs += page.jobs
        cursor = page.cursor
        scanned += page.scanned
        if cursor is None or len(jobs) >= asked.limit or time.monotonic() > until:
            return Page(tuple(jobs), cursor, scanned)


async def _job(asked: Asked) -> Job:
    job_id = asked.path["id"]
    check_id("id", job_id)
    job = await asked.house.app.jobs.get(job_id)
    if job is None:
        raise JobNotFound(job_id)
    return job


async def get_job(asked: Asked) -> Answer:
    job = await _job(asked)
    store = await asked.house.store()
    now = await store.now()
    return Answer(await aside(weight_of(job), lambda: whole(job, now, asked.house)))


async def explain(asked: Asked) -> Answer:
    job = await _job(asked)
    store = await asked.house.store()
    now = await store.now()
    reasons = await why_waiting(asked.house.app, store, job, now)
    plain = [{"code": one.code, "text": one.text, "command": one.command} for one in reasons]
    return Answer({"id": job.id, "state": word(job, now), "reasons": plain})


async def result(asked: Asked) -> Answer:
    check_id("id", asked.path["id"])
    wait = asked.query.wait
    with asked.house.waiting if wait else nullcontext():
        outcome = await _outcome(asked.house, asked.path["id"], wait)
    return Answer(outcome, 200 if outcome["finished"] else 202)


async def _outcome(house: House, job_id: str, wait: float) -> Plain:
    """How the job ended; or, after the wait, that it has not."""
    store = await house.store()
    async with store.watch(job_id) as watch:
        try:
            job = await _unless_stopped(house, waiting.finished(store, watch, job_id, None, wait), job_id, wait)
        except WaitTimeout:
            [now] = await store.get([job_id])
            if now is None or now.state not in FINISHED:
                return _ended(job_id, State.WAITING if now is None else now.state, None, None, None)
            job = now
        except JobCancelled:
            return _ended(job_id, State.CANCELLED, None, None, None)
        except JobFailed as failed:  # its record is gone; its history is not
            error = failure_plain(failure_without(failed.error, UNKNOWN if house.redaction.phrases else NO_SECRETS))
            return _ended(job_id, State.DEAD, None, failed.reason, error)
    if job.state is State.COMPLETED and job.result_expired:
        raise ResultExpired(job.id)
    return await aside(weight_of(job), lambda: _finished(job, house))


async def _unless_stopped(house: House, finished: Coroutine[Any, Any, Job], job_id: str, wait: float) -> Job:
    """A server that is to stop does not wait for jobs: they go on, and are asked for again elsewhere."""
    if not wait:
        return await finished
    waiting_for = asyncio.create_task(finished)
    stopped = asyncio.create_task(house.closing.within(wait + 1))
    try:
        await asyncio.wait({waiting_for, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if waiting_for.done():
            return waiting_for.result()
        raise WaitTimeout(job_id, wait)
    finally:
        for task in (waiting_for, stopped):
            task.cancel()
        await asyncio.gather(waiting_for, stopped, return_exceptions=True)


def _finished(job: Job, house: House) -> Plain:
    hidden = secrets(job, house)
    error = failure_plain(failure_without(job.error, hidden))
    return _ended(job.id, job.state, result_shown(job, hidden, house), job.reason, error)


def _ended(job_id: str, state: State, value: Any, reason: str | None, error: Plain | None) -> Plain:
    return {
        "id": job_id,
        "state": state.value,
        "finished": state in FINISHED,
        "result": value,
        "reason": reason,
        "error": error,
    }


_LINKS = tuple(
    Link(name, operation, {"id": "$response.body#/id"})
    for name, operation in (
        ("job", "getJob"),
        ("history", "getHistory"),
        ("why", "explainJob"),
        ("cancel", "cancelJob"),
        ("archive", "archiveJob"),
        ("replay", "replayJob"),
    )
)

ROUTES = (
    Route(
        "enqueueJob",
        "POST",
        "/api/jobs",
        "operator",
        "Put a job in; with `wait`, wait for its result",
        enqueue,
        cli="submit TASK PAYLOAD --wait",
        query=taken.WaitQuery,
        body=taken.NewJob,
        answers={201: given.Enqueued, 200: given.Enqueued},
        refusals=(404, 409, 422, 429),
        most=ONE,
        links=_LINKS,
    ),
    Route(
        "enqueueJobs",
        "POST",
        "/api/batch",
        "operator",
        "Put many jobs in, all or nothing",
        enqueue_many,
        cli="submit TASK PAYLOAD --many",
        body=taken.NewJobs,
        answers={201: given.EnqueuedMany},
        refusals=(409, 422, 429),
        most=MANY,
        links=(Link("first", "getJob", {"id": "$response.body#/jobs/0/id"}),),
    ),
    Route(
        "listJobs",
        "GET",
        "/api/jobs",
        "viewer",
        "Jobs that fit all filters, a page at a time",
        list_jobs,
        cli="list --status --queue --task --group --key --since --until --finished-from --finished-to --error "
        "--after --limit --cursor --oldest --all",
        query=taken.ListQuery,
        answers={200: given.Jobs},
        links=(
            Link("next", "listJobs", {"cursor": "$response.body#/cursor"}),
            Link("first", "getJob", {"id": "$response.body#/jobs/0/id"}),
        ),
    ),
    Route(
        "getJob",
        "GET",
        "/api/jobs/{id}",
        "viewer",
        "Everything that is known of a job",
        get_job,
        cli="status ID",
        answers={200: given.Job},
        refusals=(404,),
    ),
    Route(
        "getResult",
        "GET",
        "/api/jobs/{id}/result",
        "viewer",
        "How a job ended; 202 while it has not, after at most `wait` seconds",
        result,
        cli="status ID --wait",
        query=taken.WaitQuery,
        answers={200: given.Outcome, 202: given.Outcome},
        refusals=(404, 410),
    ),
    Route(
        "explainJob",
        "GET",
        "/api/jobs/{id}/why",
        "viewer",
        "Why a job is not running, the strongest reason first",
        explain,
        cli="status ID",
        answers={200: given.Why},
        refusals=(404,),
    ),
)
