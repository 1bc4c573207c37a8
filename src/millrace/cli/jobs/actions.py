"""Commands that act on jobs, selected by id or by filter: cancel, replay, archive, unarchive, delete."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from millrace.app.app import App
from millrace.app.format import plural
from millrace.cli import exits
from millrace.cli.jobs.filters import Filter, read_query
from millrace.cli.output import Word
from millrace.cli.session import CommandSession
from millrace.domain.errors import InvalidInput
from millrace.domain.request import Query
from millrace.views.bulk import BATCH, BulkAction, MatchedJobs, bulk_action
from millrace.views.filters import matching

EXAMPLES = {
    "cancel": (
        "Examples:\n"
        "  millrace cancel mail-7\n"
        "  millrace cancel --queue mail --since 1h --dry-run\n"
        "  millrace cancel --task resize --also-running --yes",
    ),
    "replay": (
        "Examples:\n"
        "  millrace replay mail-7\n"
        "  millrace replay --queue mail --since 1d --dry-run      which would be replayed?\n"
        "  millrace replay --error 3f2a9c1b44 --yes               all that died of one error (see: millrace dead)",
    ),
    "archive": ("Examples:\n  millrace archive mail-7\n  millrace archive --status dead --until 7d --yes",),
    "unarchive": ("Examples:\n  millrace unarchive mail-7\n  millrace list --status archived",),
    "delete": (
        "Examples:\n"
        "  millrace delete mail-7\n"
        "  millrace delete --status dead --queue mail --dry-run   which would be deleted?\n"
        "  millrace delete --error 3f2a9c1b44 --yes               all that died of one error (see: millrace dead)\n"
        "  millrace delete --finished-to 7d --yes                 all that finished a week ago or earlier",
        "To hide jobs but keep them, use millrace archive; for a whole queue, millrace obliterate.",
    ),
}
SAMPLE = 10


@dataclass
class Choice:
    """Options shared by the commands that act on many jobs."""

    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show which jobs would change.")] = False
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit", "-n", min=1, max=10_000_000, metavar="N", help="Maximum number of jobs to change, oldest first."
        ),
    ] = None


Ids = Annotated[
    list[str] | None,
    typer.Argument(metavar="[ID]...", help="Ids of jobs; - reads them from stdin.", show_default=False),
]


async def cancel(
    session: CommandSession,
    chosen: Filter,
    choice: Choice,
    ids: Ids = None,
    also_running: Annotated[
        bool, typer.Option("--also-running", help="Also cancel running jobs; their handlers are aborted.")
    ] = False,
) -> int:
    """Cancel jobs, by id or by filter.

    Exit 0 if all jobs were cancelled. Exit 1 if a job was not, because it is running, has finished, or does not exist.
    """
    return await _do(session, bulk_action("cancel", also_running=also_running), ids, chosen, choice)


async def replay(
    session: CommandSession,
    chosen: Filter,
    choice: Choice,
    ids: Ids = None,
    no_children: Annotated[
        bool, typer.Option("--no-children", help="Do not replay the jobs that died because of these jobs.")
    ] = False,
) -> int:
    """Run finished jobs again.

    The jobs are moved back to waiting, with 0 failures, and keep their history. If a job died because a parent failed,
    it is replayed together with the parent. Without --status, a filter selects only dead jobs; add --status completed
    or --status cancelled to select others. Exit 1 if a job was not replayed.
    """
    return await _do(session, bulk_action("replay", children=not no_children), ids, chosen, choice)


async def archive(session: CommandSession, chosen: Filter, choice: Choice, ids: Ids = None) -> int:
    """Hide finished jobs from lists.

    `list --status archived` shows archived jobs; `unarchive` makes them visible again.
    """
    return await _do(session, bulk_action("archive"), ids, chosen, choice)


async def unarchive(session: CommandSession, chosen: Filter, choice: Choice, ids: Ids = None) -> int:
    """Make archived jobs visible again, in the state they had."""
    return await _do(session, bulk_action("unarchive"), ids, chosen, choice)


async def delete(session: CommandSession, chosen: Filter, choice: Choice, ids: Ids = None) -> int:
    """Delete finished jobs permanently, by id or by filter.

    Payloads, results and errors are deleted at once, regardless of retention. The events stay. Waiting and running jobs
    are not deleted. This cannot be undone. Exit 1 if a job was not deleted.
    """
    return await _do(session, bulk_action("delete"), ids, chosen, choice)


async def _do(
    session: CommandSession, action: BulkAction, ids: list[str] | None, chosen: Filter, choice: Choice
) -> int:
    if ids and chosen.given:
        raise InvalidInput("give ids or filters, not both")
    if not ids and not chosen.given:
        raise InvalidInput(f"which jobs? Give ids, or a filter such as --queue or --status; see {action.verb} --help")
    async with session.connected() as (app, store):
        by_filter = not ids
        if by_filter:
            found = await _found(session, app, action, chosen, choice, await store.now())
        else:
            found = MatchedJobs(_ids(ids or [])[: choice.limit])
        if choice.dry_run:
            return _dry(session, action, found.ids)
        if by_filter and found and not choice.yes and not _confirmed(session, action, found.ids):
            return exits.NO
        answers = await _answers(session, app, action, found)
    return _report(session, action, answers, by_filter)


async def _found(
    session: CommandSession, app: App, action: BulkAction, chosen: Filter, choice: Choice, now: int
) -> MatchedJobs:
    queries = action.queries(read_query(chosen, now, bool(action.archived)))
    found = MatchedJobs(queries=queries)
    with session.output.progress("looking") as progress:
        for query in queries:
            await _collect(app, query, chosen.error, choice.limit, found, progress)
    return found


async def _collect(
    app: App, query: Query, error: str | None, limit: int | None, found: MatchedJobs, progress: Callable[[int], None]
) -> None:
    async for job in matching(app, query, error):
        if limit is not None and len(found) >= limit:
            return
        found.see(job)
        if not len(found) % BATCH:
            progress(len(found))


def _ids(arguments: list[str]) -> list[str]:
    """Return the ids given as arguments, or the non-empty lines of stdin if the only argument is `-`."""
    if arguments != ["-"]:
        return arguments
    try:
        lines = sys.stdin.buffer.read().decode().splitlines()
    except UnicodeDecodeError as error:
        raise InvalidInput(f"ids on stdin must be UTF-8 text, one id per line: {error}") from None
    return [line.strip() for line in lines if line.strip()]


def _dry(session: CommandSession, action: BulkAction, found: list[str]) -> int:
    if session.output.json:
        session.output.document({"dry_run": True, "matched": len(found), "ids": found})
        return exits.OK
    for job_id in found:
        session.output.row([job_id])
    session.output.say(f"{plural(len(found), 'job')} would be {action.past}. Nothing was changed.")
    return exits.OK


def _confirmed(session: CommandSession, action: BulkAction, found: list[str]) -> bool:
    session.output.say("\n".join(found[:SAMPLE]) + (f"\n… and {len(found) - SAMPLE:,} more" if found[SAMPLE:] else ""))
    answer = session.output.confirm(f"{action.verb.capitalize()} {plural(len(found), 'job')}?")
    if answer is None:
        raise InvalidInput(
            f"{plural(len(found), 'job')} would be {action.past}, and there is no terminal to confirm on. "
            "Check with --dry-run, then use --yes."
        )
    return answer


async def _answers(session: CommandSession, app: App, action: BulkAction, found: MatchedJobs) -> list[tuple[str, str]]:
    answers: list[tuple[str, str]] = []
    with session.output.progress(action.verb, len(found)) as progress:
        async for part in found.act(app, action):
            answers += part
            progress(len(answers))
    return answers


def _report(session: CommandSession, action: BulkAction, answers: list[tuple[str, str]], by_filter: bool) -> int:
    counts: Counter[str] = Counter(answer for _, answer in answers)
    refused = sum(count for answer, count in counts.items() if answer not in action.done)
    if session.output.json:
        jobs: list[dict[str, Any]] = [{"id": job_id, "answer": answer} for job_id, answer in answers]
        session.output.document({"dry_run": False, "matched": len(answers), "answers": dict(counts), "jobs": jobs})
    elif not by_filter or not session.output.terminal:
        session.output.table(("id", "answer"), [(job_id, Word(answer)) for job_id, answer in answers])
    done = len(answers) - refused
    words = f"{plural(done, 'job')} {action.past}" if done else f"nothing {action.past}"
    if refused:
        words += "".join(
            f"; {count:,} {answer.replace('_', ' ')}" for answer, count in counts.items() if answer not in action.done
        )
    if by_filter or refused:
        session.output.say(words if answers else "No job matches.")
    return exits.NO if refused else exits.OK
