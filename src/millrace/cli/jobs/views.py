"""Commands that show jobs: `millrace status` and `millrace list`."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer

from millrace.app.app import App
from millrace.app.format import plural
from millrace.app.handler.job_log import read_log
from millrace.app.why import why_waiting
from millrace.cli import exits
from millrace.cli.advice import as_typed
from millrace.cli.jobs.filters import Filter, page_of, read_query
from millrace.cli.jobs.log import log_text
from millrace.cli.output import At, Cell, StyledSpan, Word
from millrace.cli.session import CommandSession
from millrace.cli.text import ago, cut, duration
from millrace.domain.errors import (
    InvalidInput,
    JobCancelled,
    JobFailed,
    JobNotFound,
    QueueError,
    ResultExpired,
    WaitTimeout,
)
from millrace.domain.job import FINISHED, Job, State, word
from millrace.domain.request import Query
from millrace.domain.rules.dead import expires_at
from millrace.domain.settings import QueueSettings
from millrace.views.filters import PAGE, sorted_by_change
from millrace.views.job_view import JobView, job_summary, job_view

EXAMPLES = {
    "status": (
        "Examples:\n"
        "  millrace status mail-7\n"
        "  millrace status mail-7 --wait 1m            exit 0 once it completed, 1 if it died, 4 if it still runs\n"
        "  millrace status mail-7 --json | jq .result",
    ),
    "list": (
        "Examples:\n"
        "  millrace list --status dead --since 1d\n"
        "  millrace list --queue mail --status ready --limit 10\n"
        "  millrace list --sort changed                    last changed first\n"
        "  millrace list --shard a --status running        one sixteenth of a bucket or directory\n"
        "  millrace list --status blocked --after order-7   jobs that wait for that job\n"
        "  millrace list --tag import                       looks at every job that the other filters find\n"
        "  millrace list --task send_email --json | jq -r '.jobs[].id'\n"
        "  millrace list | column -t -s $'\\t'",
    ),
}
LONGEST_TEXT = 2_000
LAST_LINES = 10  # of the log; `millrace log` shows all


class ExplainedJob(JobView):
    """The output of `millrace status --json`: the job, and why it waits."""

    why: list[str]


async def status(
    session: CommandSession,
    ids: Annotated[list[str], typer.Argument(metavar="ID", help="Ids of jobs.", show_default=False)],
    wait: Annotated[
        str | None,
        typer.Option(
            "--wait", metavar="DURATION", help="Wait until the job has finished, for at most this long: 30s, 5m."
        ),
    ] = None,
) -> int:
    """Show a job: its state, its result or error, and why it waits.

    Exit 0 if every job was found (with --wait: has completed), else 1.
    """
    timeout = None if wait is None else duration("--wait", wait)
    async with session.connected() as (app, store):
        shown: list[ExplainedJob] = []
        code = exits.OK
        for job_id in ids:
            if timeout is not None:
                code = max(code, await _finished(session, app, job_id, timeout))
            [job] = await store.get([job_id])
            now = await store.now()
            if job is None:
                session.output.say(f"millrace: {JobNotFound(job_id)}")
                code = max(code, exits.NO)
                continue
            reasons = list(map(str, await why_waiting(app, store, job, now)))
            settings = await app.queue(job.queue).settings()
            if session.output.json:
                shown.append(ExplainedJob(**msgspec.structs.asdict(job_view(job, now, settings)), why=reasons))
            else:
                _show(session, _fields(job, now, reasons, settings), blank=job_id != ids[0])
        if session.output.json:
            session.output.document(shown if len(ids) > 1 else next(iter(shown), None))
    return code


async def _finished(session: CommandSession, app: App, job_id: str, timeout: int) -> int:
    try:
        await app.jobs.result(job_id, wait=timeout / 1000)
    except JobNotFound:
        return exits.NO
    except (JobFailed, JobCancelled) as error:
        session.output.say(f"millrace: {as_typed(error)}")
        return exits.NO
    except WaitTimeout as error:
        session.output.say(f"millrace: {as_typed(error)}")
        return exits.WAITING
    except (ResultExpired, QueueError):
        pass  # it completed; its result may have expired, or need the app's serde
    return exits.OK


def _show(session: CommandSession, fields: list[tuple[str, Cell]], blank: bool) -> None:
    if blank and session.output.terminal:
        print()
    session.output.record(fields)


def _fields(job: Job, now: int, reasons: list[str], settings: QueueSettings) -> list[tuple[str, Cell]]:
    expires = expires_at(job, settings)
    view = job_view(job, now)
    budget = "" if job.spec.max_attempts is None else f" of {job.spec.max_attempts}"
    fields: list[tuple[str, Cell]] = [
        ("id", job.id),
        ("task", job.task),
        ("queue", job.queue),
        ("state", Word(word(job, now))),
        *(("why", reason) for reason in reasons),
        ("priority", job.priority),
        ("group", job.spec.group),
        ("key", job.spec.key),
        ("lane", job.lane),
        ("tags", ", ".join(job.spec.tags) or None),
        ("attempt", job.attempt),
        ("failures", f"{job.failures}{budget}" if job.failures else None),
        ("enqueued", At(job.enqueued_at, now)),
        ("due", At(job.available_at, now) if job.state is State.WAITING and job.available_at > now else None),
        ("started", At(job.started_at, now) if job.started_at else None),
        ("finished", At(job.finished_at, now) if job.finished_at else None),
        ("expires", At(expires, now) if expires else None),
        ("ran", StyledSpan(_ran(job))),
        ("worker", job.worker),
        ("lease ends", At(job.lease_until, now) if job.state is State.RUNNING else None),
        ("archived", "yes" if job.archived else None),
        ("cancel", "requested" if job.cancel_requested else None),
        ("after", ", ".join(job.spec.after[:20]) if job.spec.after else None),
        ("flow", view.flow),
        ("enqueued by", view.enqueued_by),
        ("continued by", ", ".join(view.continued_by[-20:]) or None),
        ("payload", _text(view.payload)),
        ("progress", _text(view.progress) if job.progress is not None else None),
        ("result", "no longer kept" if job.result_expired else _text(view.result) if job.result else None),
        ("log", "\n".join(map(log_text, read_log(job.log)[-LAST_LINES:])) or None),
        ("reason", job.reason),
        ("error", f"{job.error.type}: {job.error.message}" if job.error else None),
        ("traceback", job.error.traceback.strip() if job.error and job.error.traceback else None),
    ]
    empty = (None, StyledSpan(None))
    return [(name, value) for name, value in fields if value not in empty]


def _ran(job: Job) -> int | None:
    if job.state not in FINISHED or job.started_at is None or job.finished_at is None:
        return None
    return job.finished_at - job.started_at


def _text(value: Any) -> str:
    return cut(msgspec.json.encode(value).decode(), LONGEST_TEXT)


async def list_jobs(
    session: CommandSession,
    chosen: Filter,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, max=100_000, metavar="N", help="Maximum number of jobs to list.")
    ] = 50,
    cursor: Annotated[
        str | None, typer.Option("--cursor", metavar="CURSOR", help="Continue where an earlier list ended.")
    ] = None,
    oldest: Annotated[bool, typer.Option("--oldest", help="Oldest first; otherwise newest first.")] = False,
    sort: Annotated[
        str, typer.Option("--sort", help="Sort by time enqueued or last changed.", metavar="enqueued|changed")
    ] = "enqueued",
    everything: Annotated[bool, typer.Option("--all", help="Include archived jobs.")] = False,
    after: Annotated[
        str | None, typer.Option("--after", help="Only jobs that depend on this job.", metavar="ID")
    ] = None,
    shard: Annotated[
        str | None, typer.Option("--shard", help="Only this shard of a bucket or directory: 0 to f.", metavar="0-f")
    ] = None,
) -> int:
    """List jobs, newest first.

    A list sorted by last change contains only jobs that changed within the retention of events, by default 7 days.
    """
    by_change = sorted_by_change(sort, "--sort", oldest=oldest)
    if by_change and shard is not None:
        raise InvalidInput("--shard lists jobs in the order they were enqueued; remove --sort")
    async with session.connected() as (app, store):
        now = await store.now()
        query = read_query(chosen, now, archived=None if everything else False)
        query = msgspec.structs.replace(query, cursor=cursor, newest_first=not oldest, by_change=by_change)
        jobs, more = await _take(app, query, chosen.error, limit, shard, after)
        if session.output.json:
            session.output.document({"jobs": [job_summary(job, now) for job in jobs], "cursor": more})
        else:
            names = ("id", "state", "queue", "task", "priority", "attempt", "enqueued", "worker", "details")
            spare = ("priority", "attempt", "worker", "details")
            session.output.table(names, [_job_row(job, now) for job in jobs], spare=spare)
            if not jobs:
                session.output.hint("No job matches.")
            if more is not None:
                session.output.say(f"More: {plural(len(jobs), 'job')} shown; continue with --cursor {more}")
    return exits.OK


async def _take(
    app: App, query: Query, error: str | None, limit: int, shard: str | None, after: str | None
) -> tuple[list[Job], str | None]:
    """Return up to `limit` jobs and the cursor to continue from. The cursor is None if there are no more jobs."""
    jobs: list[Job] = []
    while True:
        asked = msgspec.structs.replace(query, limit=min(PAGE, limit - len(jobs)))
        page = await page_of(app, asked, error, shard, after)
        jobs += page.jobs
        if page.cursor is None or len(jobs) >= limit:
            return jobs, page.cursor
        query = msgspec.structs.replace(query, cursor=page.cursor)


def _job_row(job: Job, now: int) -> list[Cell]:
    return [
        job.id,
        Word(word(job, now)),
        job.queue,
        job.task,
        job.priority,
        job.attempt,
        At(job.enqueued_at, now),
        job.worker,
        _details(job, now),
    ]


def _details(job: Job, now: int) -> str:
    """Return the most useful detail about a job: when it is due, why it died, or how many jobs it waits for. Return an
    empty string if there is none.
    """
    if job.state is State.WAITING and job.available_at > now:
        return f"due {ago(job.available_at, now)}"
    if job.state is State.DEAD:
        error = "" if job.error is None else f"{job.error.type}: {job.error.message}"
        return f"{job.reason or 'unknown'} {cut(error, 200)}".strip()
    if job.state is State.WAITING and job.blocked:
        return f"waits for {plural(job.blocked, 'job')}"
    return ""
