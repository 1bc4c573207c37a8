"""Acting on jobs: cancel, replay, archive, unarchive; by id, or all that a filter finds."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from millrace.cli import exits
from millrace.cli.filters import Filter, matching, read_query
from millrace.cli.output import Word
from millrace.cli.session import Session
from millrace.cli.text import plural
from millrace.domain.errors import InvalidInput
from millrace.domain.request import Query
from millrace.runtime.app import App
from millrace.runtime.deeds import BATCH, Deed, deed_of

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
        "  millrace replay --queue mail --since 1d --dry-run      what would come back?\n"
        "  millrace replay --error 3f2a9c1b44 --yes               all that died of one error (see: millrace dead)",
    ),
    "archive": ("Examples:\n  millrace archive mail-7\n  millrace archive --status dead --until 7d --yes",),
    "unarchive": ("Examples:\n  millrace unarchive mail-7\n  millrace list --status archived",),
}
SAMPLE = 10


@dataclass
class Choice:
    """How to go about many jobs at once."""

    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show which jobs it would be.")] = False
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False
    limit: Annotated[
        int | None,
        typer.Option("--limit", "-n", min=1, max=10_000_000, metavar="N", help="At most so many, oldest first."),
    ] = None


Ids = Annotated[
    list[str] | None,
    typer.Argument(metavar="[ID]...", help="Ids of jobs; - reads them from stdin.", show_default=False),
]


async def cancel(
    session: Session,
    chosen: Filter,
    choice: Choice,
    ids: Ids = None,
    also_running: Annotated[
        bool, typer.Option("--also-running", help="Ask running jobs to end, too; their handlers are aborted.")
    ] = False,
) -> int:
    """Cancel jobs, by id or by filter.

    Exit 0 when all were cancelled, 1 when any was not: it runs, has finished, or does not exist.
    """
    return await _do(session, deed_of("cancel", also_running=also_running), ids, chosen, choice)


async def replay(session: Session, chosen: Filter, choice: Choice, ids: Ids = None) -> int:
    """Bring finished jobs back to run again.

    They wait again, with a new budget of attempts and their history kept. A filter alone finds dead jobs; say --status
    completed or cancelled for others. Exit 1 when any was not replayed.
    """
    return await _do(session, deed_of("replay"), ids, chosen, choice)


async def archive(session: Session, chosen: Filter, choice: Choice, ids: Ids = None) -> int:
    """Put finished jobs out of sight.

    Lists leave them out (see them with `list --status archived`); `unarchive` shows them again, as they were.
    """
    return await _do(session, deed_of("archive"), ids, chosen, choice)


async def unarchive(session: Session, chosen: Filter, choice: Choice, ids: Ids = None) -> int:
    """Show archived jobs again, in the state they had."""
    return await _do(session, deed_of("unarchive"), ids, chosen, choice)


async def _do(session: Session, deed: Deed, ids: list[str] | None, chosen: Filter, choice: Choice) -> int:
    if ids and chosen.given:
        raise InvalidInput("give ids or filters, not both")
    if not ids and not chosen.given:
        raise InvalidInput(f"which jobs? Give ids, or a filter such as --queue or --status; see {deed.verb} --help")
    async with session.connected() as (app, store):
        by_filter = not ids
        if by_filter:
            found = await _found(session, app, deed, chosen, choice, await store.now())
        else:
            found = _ids(ids or [])[: choice.limit]
        if choice.dry_run:
            return _dry(session, deed, found)
        if by_filter and found and not choice.yes and not _agreed(session, deed, found):
            return exits.NO
        answers = await _answers(session, app, deed, found)
    return _report(session, deed, answers, by_filter)


async def _found(session: Session, app: App, deed: Deed, chosen: Filter, choice: Choice, now: int) -> list[str]:
    found: list[str] = []
    with session.output.progress("looking") as progress:
        for query in deed.queries(read_query(chosen, now, deed.archived)):
            await _collect(app, query, chosen.error, choice.limit, found, progress)
    return found


async def _collect(
    app: App, query: Query, error: str | None, limit: int | None, found: list[str], progress: Callable[[int], None]
) -> None:
    async for job in matching(app, query, error):
        if limit is not None and len(found) >= limit:
            return
        found.append(job.id)
        if not len(found) % BATCH:
            progress(len(found))


def _ids(given: list[str]) -> list[str]:
    """What was typed; a single - stands for the lines of stdin."""
    if given != ["-"]:
        return given
    try:
        lines = sys.stdin.buffer.read().decode().splitlines()
    except UnicodeDecodeError as error:
        raise InvalidInput(f"ids on stdin must be text in UTF-8, a line each: {error}") from None
    return [line.strip() for line in lines if line.strip()]


def _dry(session: Session, deed: Deed, found: list[str]) -> int:
    if session.output.json:
        session.output.document({"dry_run": True, "matched": len(found), "ids": found})
        return exits.OK
    for job_id in found:
        session.output.row([job_id])
    session.output.say(f"{plural(len(found), 'job')} would be {deed.past}. Nothing was changed.")
    return exits.OK


def _agreed(session: Session, deed: Deed, found: list[str]) -> bool:
    session.output.say("\n".join(found[:SAMPLE]) + (f"\n… and {len(found) - SAMPLE:,} more" if found[SAMPLE:] else ""))
    answer = session.output.confirm(f"{deed.verb.capitalize()} {plural(len(found), 'job')}?")
    if answer is None:
        raise InvalidInput(
            f"{plural(len(found), 'job')} would be {deed.past}, and there is nobody to ask. "
            "Look with --dry-run, then say --yes."
        )
    return answer


async def _answers(session: Session, app: App, deed: Deed, found: list[str]) -> list[tuple[str, str]]:
    answers: list[tuple[str, str]] = []
    with session.output.progress(deed.verb, len(found)) as progress:
        for start in range(0, len(found), BATCH):
            part = found[start : start + BATCH]
            answers += zip(part, map(str, await deed.ask(app, part)), strict=True)
            progress(len(answers))
    return answers


def _report(session: Session, deed: Deed, answers: list[tuple[str, str]], by_filter: bool) -> int:
    counts: Counter[str] = Counter(answer for _, answer in answers)
    refused = sum(count for answer, count in counts.items() if answer not in deed.done)
    if session.output.json:
        jobs: list[dict[str, Any]] = [{"id": job_id, "answer": answer} for job_id, answer in answers]
        session.output.document({"dry_run": False, "matched": len(answers), "answers": dict(counts), "jobs": jobs})
    elif not by_filter or not session.output.terminal:
        session.output.table(("id", "answer"), [(job_id, Word(answer)) for job_id, answer in answers])
    done = len(answers) - refused
    words = f"{plural(done, 'job')} {deed.past}" if done else f"nothing {deed.past}"
    if refused:
        words += "".join(
            f"; {count:,} {answer.replace('_', ' ')}" for answer, count in counts.items() if answer not in deed.done
        )
    if by_filter or refused:
        session.output.say(words if answers else "No job matches.")
    return exits.NO if refused else exits.OK
