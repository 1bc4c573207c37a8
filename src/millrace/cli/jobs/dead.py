"""`millrace dead`: shows dead jobs grouped by cause, and how to replay them."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer

from millrace.app.format import plural
from millrace.cli import exits
from millrace.cli.jobs.filters import DeadFilter, Filter, read_query
from millrace.cli.output import At, Cell
from millrace.cli.session import CommandSession
from millrace.cli.text import cut
from millrace.domain.job import Job
from millrace.domain.rules.dead import expires_at
from millrace.domain.settings import QueueSettings
from millrace.views.causes import Cause, Causes, cause_view
from millrace.views.filters import matching
from millrace.views.fingerprint import cause, fingerprint
from millrace.views.job_view import Instant, JobSummary, job_summary, when

EXAMPLES = {
    "dead": (
        "Examples:\n"
        "  millrace dead                               causes, the most frequent first\n"
        "  millrace dead --error 3f2a9c1b44            the jobs with this error\n"
        "  millrace replay --error 3f2a9c1b44          replay them\n"
        "  millrace delete --error 3f2a9c1b44          or delete them\n"
        "  millrace dead --queue mail --since 1d --jobs",
    )
}


async def dead(
    session: CommandSession,
    narrowed: DeadFilter,
    jobs: Annotated[bool, typer.Option("--jobs", help="List the jobs instead of the causes.")] = False,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, max=100_000, metavar="N", help="Maximum number of rows to show.")
    ] = 50,
) -> int:
    """Show dead jobs by cause, and how to replay them."""
    chosen = Filter(status="dead", **vars(narrowed))
    causes = Causes()
    listed: list[Job] = []
    settings: dict[str, QueueSettings] = {}
    async with session.connected() as (app, store):
        now = await store.now()
        with session.output.progress("looking") as progress:
            async for job in matching(app, read_query(chosen, now), chosen.error):
                causes.add(job)
                if len(listed) < limit:
                    listed.append(job)
                if not causes.total % 1_000:
                    progress(causes.total)
        for job in listed if jobs or chosen.error is not None else ():
            if job.queue not in settings:
                settings[job.queue] = await app.queue(job.queue).settings()
    ordered, total = causes.ordered(limit), causes.total
    if session.output.json:
        document: dict[str, Any] = {"total": total, "causes": [cause_view(one) for one in ordered]}
        if jobs or chosen.error is not None:
            document["jobs"] = [_dead_job(job, now, settings[job.queue]) for job in listed]
        session.output.document(document)
    elif jobs or chosen.error is not None:
        rows = [_job_row(job, now, settings[job.queue]) for job in listed]
        session.output.table(("id", "queue", "task", "died", "expires", "reason", "error"), rows, spare=("expires",))
    else:
        names = ("fingerprint", "count", "task", "reason", "last", "error", "example")
        session.output.table(names, [_row(one, now) for one in ordered])
    _hints(session, ordered, total, listed if jobs or chosen.error is not None else None)
    return exits.OK


def _hints(session: CommandSession, ordered: list[Cause], total: int, listed: list[Job] | None) -> None:
    if not total:
        session.output.hint("There are no dead jobs.")
        return
    if listed is not None and len(listed) < total:
        session.output.say(f"{len(listed):,} of {plural(total, 'dead job')} shown; --limit shows more")
    worst = ordered[0]
    back = f"To replay {plural(worst.count, 'job')}:"
    width = max(len(back), len("To inspect one:"))
    session.output.hint(
        f"\n{'To inspect one:':<{width}}  millrace status {worst.example.id}\n"
        f"{back:<{width}}  millrace replay --error {worst.fingerprint}"
    )


def _row(one: Cause, now: int) -> list[Cell]:
    job = one.example
    return [one.fingerprint, one.count, job.task, job.reason, At(one.last, now), cut(cause(job), 200), job.id]


class DeadJobView(JobSummary):
    """One job in the output of `millrace dead --jobs --json`."""

    expires_at: Instant | None
    fingerprint: str


def _dead_job(job: Job, now: int, settings: QueueSettings) -> DeadJobView:
    summary = msgspec.structs.asdict(job_summary(job, now))
    return DeadJobView(**summary, expires_at=when(expires_at(job, settings)), fingerprint=fingerprint(job))


def _job_row(job: Job, now: int, settings: QueueSettings) -> list[Cell]:
    error = "" if job.error is None else f"{job.error.type}: {job.error.message}"
    expires = expires_at(job, settings)
    shown = None if expires is None else At(expires, now)
    return [job.id, job.queue, job.task, At(job.finished_at, now), shown, job.reason, cut(error, 300)]
