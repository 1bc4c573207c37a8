"""`millrace obliterate`: permanently deletes all jobs of a queue."""

from __future__ import annotations

from typing import Annotated

import typer

from millrace.app.format import plural
from millrace.cli import exits
from millrace.cli.session import CommandSession
from millrace.domain.errors import InvalidInput
from millrace.domain.request import QueueCounts

EXAMPLES = {
    "obliterate": (
        "Examples:\n"
        "  millrace obliterate scratch --dry-run         how many would be deleted?\n"
        "  millrace obliterate scratch                   on a terminal: asks for the queue's name\n"
        "  millrace obliterate scratch --force           in a script",
        "To stop jobs and keep their records, use millrace drain; to hide them, millrace archive.",
    )
}


async def obliterate(
    session: CommandSession,
    name: Annotated[str, typer.Argument(metavar="QUEUE", help="A queue or pool.", show_default=False)],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show how many jobs would be deleted.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Do not ask for confirmation. This cannot be undone.")] = False,
) -> int:
    """Delete every job of a queue permanently, in any state.

    Results and errors are deleted too, and so are archived jobs. Running jobs lose their lease. Events stay until
    retention removes them, and the queue keeps its settings. Exit 1 if the queue was never used, or if it was not
    confirmed.
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
            if not force and not _confirmed(session, known[0], jobs):
                return exits.NO
            with session.output.progress("removing", jobs) as progress:
                removed = await queue.obliterate(force=True, progress=progress)
    if session.output.json:
        session.output.document({"queue": name, "dry_run": dry_run, "jobs": jobs, "removed": removed})
        return exits.OK
    print(jobs if dry_run else removed)
    session.output.say(
        f"{_described(known[0])} would be removed. Nothing was changed."
        if dry_run
        else f"{plural(removed, 'job')} removed"
    )
    return exits.OK


def _all(counts: QueueCounts) -> int:
    return counts.waiting + counts.running + counts.completed + counts.dead + counts.cancelled


def _described(counts: QueueCounts) -> str:
    states = ("waiting", "running", "completed", "dead", "cancelled")
    parts = [f"{getattr(counts, state):,} {state}" for state in states if getattr(counts, state)]
    return f"{plural(_all(counts), 'job')} of queue {counts.queue}" + (f" ({', '.join(parts)})" if parts else "")


def _confirmed(session: CommandSession, counts: QueueCounts, jobs: int) -> bool:
    """Ask the user to type the name of the queue, and return whether it was correct. A queue without jobs needs no
    confirmation. Raises InvalidInput if there is no terminal.
    """
    if not jobs:
        return True
    session.output.say(f"{_described(counts)} will be deleted permanently, with their results and errors.")
    typed = session.output.ask("Type the queue's name to continue: ")
    if typed is None:
        raise InvalidInput("there is no terminal to confirm on. Check with --dry-run, then use --force.")
    if typed != counts.queue:
        session.output.say("That is not the queue's name. Nothing was changed.")
    return typed == counts.queue
