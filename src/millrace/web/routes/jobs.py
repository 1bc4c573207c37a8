"""Jobs over HTTP: enqueue, list, show, explain, and wait for a result."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from contextlib import nullcontext
from typing import Any
from urllib.parse import quote

from millrace.app import result_wait
from millrace.app.payloads.jsonable import refuse_unsafe
from millrace.app.telemetry.redaction import NO_SECRETS, UNKNOWN, JobRedactor, failure_without, off_loop, size_of
from millrace.app.why import why_waiting
from millrace.domain.errors import JobCancelled, JobFailed, JobNotFound, ResultExpired, WaitTimeout
from millrace.domain.job import FINISHED, Job, State, word
from millrace.domain.request import Enqueued
from millrace.domain.rules.check import check_id
from millrace.store.protocol import Store
from millrace.views.job_input import SpecBuilder
from millrace.views.job_view import ErrorView, JobSummary, JobView, enqueued_view, error_view, job_summary, job_view
from millrace.web import requests, responses
from millrace.web.deadline import with_deadline
from millrace.web.operation import Link, Reply, Request, Routes
from millrace.web.paging import page_for
from millrace.web.responses import JobResult
from millrace.web.state import ServerState

log = logging.getLogger("millrace.web")
ONE = 2 << 20  # a payload of the largest size, and some room for escapes in it
MANY = 16 << 20
WHEN_QUEUED = 201
MOST_BUILDERS = 1_000
LINKS = tuple(
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
UNBATCHED = frozenset({"id", "delay", "expires", "group", "key", "after"})  # without these, jobs are independent
routes = Routes()


# ── enqueue ───────────────────────────────────────────────────────────────────────────────────


@routes.post(
    "/api/jobs",
    "operator",
    "Enqueue a job; with `wait`, wait for its result",
    cli="submit TASK PAYLOAD --wait",
    query=requests.WaitQuery,
    body=requests.NewJob,
    responses={201: responses.EnqueuedJob, 200: responses.EnqueuedJob},
    problems=(404, 409, 422, 429),
    max_body=ONE,
    own_deadline=True,
    links=LINKS,
)
async def enqueue_job(request: Request) -> Reply:
    new: requests.NewJob = request.body
    wait = request.query.wait
    with request.server.waiting if wait else nullcontext():  # first: a request that is refused enqueues nothing
        [answer] = await _enqueue_all(request, [new])
        outcome = None
        if wait or answer.status == "completed":
            outcome = await _outcome_or_none(request.server, answer.id, wait)
    status = WHEN_QUEUED if answer.status == "queued" else 200
    return Reply(_enqueued(answer, outcome), status, {"location": f"jobs/{quote(answer.id, safe='')}"})


async def _outcome_or_none(server: ServerState, job_id: str, wait: float) -> JobResult | None:
    """Return how the job ended. Return None on an error: the job is enqueued, so the client must get its id in any
    case.
    """
    try:
        return await _outcome(server, job_id, wait)
    except ResultExpired:  # it completed; only its result is no longer kept
        return _result(job_id, State.COMPLETED, reason="result_expired")
    except Exception as error:
        log.warning("job %s is enqueued, but its outcome cannot be read: %s", job_id, error, exc_info=error)
        return None


@routes.post(
    "/api/batch",
    "operator",
    "Enqueue many jobs, all or nothing",
    cli="submit TASK PAYLOAD --many",
    body=requests.NewJobs,
    responses={201: responses.EnqueuedJobs},
    problems=(409, 422, 429),
    max_body=MANY,
    own_deadline=True,
    links=(Link("first", "getJob", {"id": "$response.body#/jobs/0/id"}),),
)
async def enqueue_jobs(request: Request) -> Reply:
    answers = await _enqueue_all(request, request.body.jobs)
    return Reply(responses.EnqueuedJobs([_enqueued(answer) for answer in answers]), WHEN_QUEUED)


async def _enqueue_all(request: Request, jobs: list[requests.NewJob]) -> list[Enqueued]:
    app = request.server.app
    specs = []
    batched = len(jobs) == 1 and app.tracing is None
    for number, new in enumerate(jobs):
        where = "the payload" if len(jobs) == 1 else f"the payload of job {number}"
        refuse_unsafe(where, new.payload, finite=True, keys=False)
        options = requests.job_options(new)
        batched = batched and UNBATCHED.isdisjoint(options)
        specs += _builder(request.server, new, options).specs(app, [new.payload])
    if batched:
        answers = [await with_deadline(request.server.batcher.enqueue(app, specs[0]), 1)]
    else:
        answers = [job.enqueued for job in await with_deadline(app.enqueue(specs), len(specs))]
    request.details |= {"jobs": len(answers), "ids": [answer.id for answer in answers[:10]]}
    return answers


def _builder(server: ServerState, new: requests.NewJob, options: dict[str, Any]) -> SpecBuilder:
    """Return the builder for the spec of this job. Jobs without options of their own share one builder per task."""
    checked = None if new.unchecked or not server.app.tasks else server.app
    if options:
        return SpecBuilder(checked, new.task, options)
    known = server.spec_builders.get((new.task, new.unchecked))
    if known is None:
        known = SpecBuilder(checked, new.task, {})
        if len(server.spec_builders) < MOST_BUILDERS:
            server.spec_builders[new.task, new.unchecked] = known
    return known


def _enqueued(answer: Enqueued, outcome: JobResult | None = None) -> responses.EnqueuedJob:
    return enqueued_view(answer, responses.EnqueuedJob, outcome=outcome)


# ── read ──────────────────────────────────────────────────────────────────────────────────────


@routes.get(
    "/api/jobs",
    "viewer",
    "Jobs that match all filters, a page at a time",
    cli="list --status --queue --task --group --key --since --until --finished-from --finished-to --error "
    "--after --limit --cursor --oldest --sort --all",
    query=requests.ListQuery,
    links=(
        Link("next", "listJobs", {"cursor": "$response.body#/cursor"}),
        Link("first", "getJob", {"id": "$response.body#/jobs/0/id"}),
    ),
)
async def list_jobs(request: Request) -> responses.JobList:
    server, query = request.server, request.query
    store = await server.app.connected()
    now = await store.now()
    if query.id:
        ids = list(dict.fromkeys(query.id))
        for job_id in ids:
            check_id("id", job_id)
        found = [job for job in await store.get(ids) if job is not None]
        return responses.JobList(await _summaries(found, now, server), None, len(found))
    page = await page_for(server.app, query, now)
    return responses.JobList(await _summaries(page.jobs, now, server), page.cursor, page.scanned)


async def _summaries(jobs: Sequence[Job], now: int, server: ServerState) -> list[JobSummary]:
    """Return the jobs as entries of a list. A list has no payloads, but errors may quote payloads, so errors are
    redacted.
    """
    size = sum(len(job.spec.payload) for job in jobs if job.error is not None)
    return await off_loop(
        size, lambda: [job_summary(job, now, _redactor(job, server) if job.error else None) for job in jobs]
    )


def _redactor(job: Job, server: ServerState) -> JobRedactor:
    return JobRedactor(job, server.redaction, server.app.serdes)


async def _job(store: Store, job_id: str) -> Job:
    [job] = await store.get([job_id])
    if job is None:
        raise JobNotFound(job_id)
    return job


@routes.get("/api/jobs/{id}", "viewer", "All data of a job", cli="status ID", problems=(404,))
async def get_job(request: Request) -> JobView:
    server = request.server
    store = await server.app.connected()
    job, now = await _job(store, request.path["id"]), await store.now()
    # Reading settings can wait for writers, and only a finished job needs them: they determine when it is removed.
    settings = await server.app.queue(job.queue).settings() if job.state in FINISHED else None
    return await off_loop(size_of(job), lambda: job_view(job, now, settings, _redactor(job, server)))


@routes.get(
    "/api/jobs/{id}/why",
    "viewer",
    "Why a job is not running, the strongest reason first",
    cli="status ID",
    problems=(404,),
)
async def explain_job(request: Request) -> responses.WaitReasons:
    store = await request.server.app.connected()
    job, now = await _job(store, request.path["id"]), await store.now()
    return responses.WaitReasons(job.id, word(job, now), await why_waiting(request.server.app, store, job, now))


@routes.get(
    "/api/jobs/{id}/result",
    "viewer",
    "How a job ended; 202 while it has not, after at most `wait` seconds",
    cli="status ID --wait",
    query=requests.WaitQuery,
    responses={200: JobResult, 202: JobResult},
    problems=(404, 410),
)
async def get_result(request: Request) -> Reply:
    wait = request.query.wait
    with request.server.waiting if wait else nullcontext():
        outcome = await _outcome(request.server, request.path["id"], wait)
    return Reply(outcome, 200 if outcome.finished else 202)


async def _outcome(server: ServerState, job_id: str, wait: float) -> JobResult:
    """Return how the job ended. If it has not ended after `wait` seconds, return a result that says so. Raises
    ResultExpired and JobNotFound.
    """
    store = await server.app.connected()
    async with store.watch(job_id) as watch:
        try:
            job = await _unless_stopped(server, result_wait.finished(store, watch, job_id, None, wait), job_id, wait)
        except WaitTimeout:
            [now] = await store.get([job_id])
            if now is None or now.state not in FINISHED:
                return _result(job_id, State.WAITING if now is None else now.state)
            job = now
        except JobCancelled:
            return _result(job_id, State.CANCELLED)
        except JobFailed as failed:  # its record is gone; its history is not
            error = failure_without(failed.error, UNKNOWN if server.redaction.phrases else NO_SECRETS)
            return _result(job_id, State.DEAD, reason=failed.reason, error=error_view(error))
    if job.state is State.COMPLETED and job.result_expired:
        raise ResultExpired(job.id)
    return await off_loop(size_of(job), lambda: _finished(job, server))


async def _unless_stopped(server: ServerState, finished: Coroutine[Any, Any, Job], job_id: str, wait: float) -> Job:
    """Wait for the job and return it. Raises WaitTimeout after `wait` seconds, or earlier if the server shuts down."""
    if not wait:
        return await finished
    waiting_for = asyncio.create_task(finished)
    stopped = asyncio.create_task(server.shutdown.within(wait + 1))
    try:
        await asyncio.wait({waiting_for, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if waiting_for.done():
            return waiting_for.result()
        raise WaitTimeout(job_id, wait)
    finally:
        for task in (waiting_for, stopped):
            task.cancel()
        await asyncio.gather(waiting_for, stopped, return_exceptions=True)


def _finished(job: Job, server: ServerState) -> JobResult:
    redactor = _redactor(job, server)
    return _result(job.id, job.state, redactor.result(), job.reason, error_view(job.error, redactor))


def _result(
    job_id: str, state: State, value: Any = None, reason: str | None = None, error: ErrorView | None = None
) -> JobResult:
    return JobResult(job_id, state, state in FINISHED, value, reason, error)
