"""Dead letters: what died, gathered by cause, and how to bring it back."""

from __future__ import annotations

from typing import Annotated

import typer

from millrace.cli import exits
from millrace.cli.filters import Filter, matching, read_query
from millrace.cli.output import At, Cell
from millrace.cli.session import Session
from millrace.cli.text import cut, plural
from millrace.domain.errors import InvalidInput
from millrace.domain.job import Job
from millrace.runtime.causes import Cause, Causes, cause_plain
from millrace.runtime.fingerprint import cause, fingerprint
from millrace.runtime.shape import Plain, job_plain

EXAMPLES = {
    "dead": (
        "Examples:\n"
        "  millrace dead                               causes, the most frequent first\n"
        "  millrace dead --error 3f2a9c1b44            the jobs that died of one\n"
        "  millrace replay --error 3f2a9c1b44          bring those back\n"
        "  millrace dead --queue mail --since 1d --jobs",
    )
}


async def dead(
    session: Session,
    chosen: Filter,
    jobs: Annotated[bool, typer.Option("--jobs", help="List the jobs instead of the causes.")] = False,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, max=100_000, metavar="N", help="Show at most so many.")
    ] = 50,
) -> int:
    """Show dead jobs by cause, and how to bring them back."""
    if chosen.status is not None:
        raise InvalidInput("this is about dead jobs only; for other states use millrace list --status")
    chosen.status = "dead"
    causes = Causes()
    listed: list[Job] = []
    async with session.connected() as (app, store):
        now = await store.now()
        with session.output.progress("looking") as progress:
            async for job in matching(app, read_query(chosen, now), chosen.error):
                causes.add(job)
                if len(listed) < limit:
                    listed.append(job)
                if not causes.total % 1_000:
                    progress(causes.total)
    ordered, total = causes.ordered(limit), causes.total
    if session.output.json:
        plain: Plain = {"total": total, "causes": [cause_plain(one) for one in ordered]}
        if jobs or chosen.error is not None:
            plain["jobs"] = [{**job_plain(job, now), "fingerprint": fingerprint(job)} for job in listed]
        session.output.document(plain)
    elif jobs or chosen.error is not None:
        session.output.table(("id", "queue", "task", "died", "reason", "error"), [_job_row(job, now) for job in listed])
    else:
        names = ("fingerprint", "count", "task", "reason", "last", "error", "example")
        session.output.table(names, [_row(one, now) for one in ordered])
    _hints(session, ordered, total, listed if jobs or chosen.error is not None else None)
    return exits.OK


def _hints(session: Session, ordered: list[Cause], total: int, listed: list[Job] | None) -> None:
    if not total:
        session.output.hint("Nothing is dead.")
        return
    if listed is not None and len(listed) < total:
        session.output.say(f"{len(listed):,} of {plural(total, 'dead job')} shown; --limit shows more")
    worst = ordered[0]
    back = f"Bring back {worst.count:,}:"
    width = max(len(back), len("Look at one:"))
    session.output.hint(
        f"\n{'Look at one:':<{width}}  millrace status {worst.example.id}\n"
        f"{back:<{width}}  millrace replay --error {worst.fingerprint}"
    )


def _row(one: Cause, now: int) -> list[Cell]:
    job = one.example
    return [one.fingerprint, one.count, job.task, job.reason, At(one.last, now), cut(cause(job), 200), job.id]


def _job_row(job: Job, now: int) -> list[Cell]:
    error = "" if job.error is None else f"{job.error.type}: {job.error.message}"
    return [job.id, job.queue, job.task, At(job.finished_at, now), job.reason, cut(error, 300)]
