"""`millrace obliterate`: remove a queue's jobs for good. The one command with no way back."""

from __future__ import annotations

from typing import Annotated

import typer

from millrace.cli import exits
from millrace.cli.session import Session
from millrace.cli.text import plural
from millrace.domain.errors import InvalidInput
from millrace.domain.request import QueueCounts

EXAMPLES = {
    "obliterate": (
        "Examples:\n"
        "  millrace obliterate scratch --dry-run         how many would be gone?\n"
        "  millrace obliterate scratch                   on a terminal: asks for the queue's name\n"
        "  millrace obliterate scratch --force           in a script",
        "To stop jobs and keep their records, use millrace drain; to put them out of sight, millrace archive.",
    )
}


async def obliterate(
    session: Session,
    name: Annotated[str, typer.Argument(metavar="QUEUE", help="A queue or pool.", show_default=False)],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show how many it would be.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Do not ask. There is no way back.")] = False,
) -> int:
    """Remove every job of a queue for good, whatever its state.

    Results and errors go with them, archived ones too, and running jobs are cut off. What stays is the record of
    events, until retention takes it, and the queue's settings. Exit 1 when the queue was never used, or its name was
    not typed.
    """
    async with session.connected() as (app, _store):
        queue = app.queue(name)
        known = [counts for counts in await app.jobs.count() if counts.queue == name]
        if not known:
            session.output.say(f"Queue {name} was never used.")
            if session.output.json:
                session.output.document({"queue": name, "dry_run": dry_run, "jobs": 0, "removed": 0})
            return exits.NO
        jobs = _all(known[0])
        removed = 0
        if not dry_run:
            if not force and not _agreed(session, known[0], jobs):
                return exits.NO
            with session.output.progress("removing", jobs) as progress:
                removed = await queue.obliterate(force=True, progress=progress)
    if session.output.json:
        session.output.document({"queue": name, "dry_run": dry_run, "jobs": jobs, "removed": removed})
        return exits.OK
    print(jobs if dry_run else removed)
    session.output.say(
        f"{_told(known[0])} would be removed. Nothing was changed." if dry_run else f"{plural(removed, 'job')} removed"
    )
    return exits.OK


def _all(counts: QueueCounts) -> int:
    return counts.waiting + counts.running + counts.completed + counts.dead + counts.cancelled


def _told(counts: QueueCounts) -> str:
    states = ("waiting", "running", "completed", "dead", "cancelled")
    parts = [f"{getattr(counts, state):,} {state}" for state in states if getattr(counts, state)]
    return f"{plural(_all(counts), 'job')} of queue {counts.queue}" + (f" ({', '.join(parts)})" if parts else "")


def _agreed(session: Session, counts: QueueCounts, jobs: int) -> bool:
    """A y is typed before it is thought; a name is not."""
    if not jobs:
        return True
    session.output.say(f"{_told(counts)} will be removed for good, with their results and errors.")
    typed = session.output.ask("Type the queue's name to go on: ")
    if typed is None:
        raise InvalidInput("there is nobody to ask. Look with --dry-run, then say --force.")
    if typed != counts.queue:
        session.output.say("That is not its name. Nothing was changed.")
    return typed == counts.queue
