"""`millrace doctor`: look at everything that commonly goes wrong, and say what to do about what did."""

from __future__ import annotations

from typing import Annotated

import typer

from millrace.cli import exits
from millrace.cli.checkup import Finding, guarded
from millrace.cli.checkup_jobs import check_jobs
from millrace.cli.checkup_objects import check_objects, check_reports
from millrace.cli.checkup_place import check_app, check_place, check_settings
from millrace.cli.checkup_postgres import check_postgres
from millrace.cli.checkup_redis import check_redis
from millrace.cli.checkup_store import check_store
from millrace.cli.output import Word
from millrace.cli.session import Session
from millrace.cli.text import duration, plural
from millrace.domain.errors import QueueError
from millrace.runtime.app import App

EXAMPLES = {
    "doctor": (
        "Examples:\n"
        "  millrace doctor\n"
        "  millrace doctor --strict                    for a deployment: warnings fail, too\n"
        "  millrace doctor --json | jq '.checks[] | select(.status != \"ok\")'",
    )
}


async def doctor(
    session: Session,
    max_age: Annotated[
        str, typer.Option("--max-age", help="Warn when a job has been ready for longer.", metavar="DURATION")
    ] = "5m",
    strict: Annotated[bool, typer.Option("--strict", help="Warnings count as failures.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Leave out what reads much of the store.")] = False,
) -> int:
    """Check settings, store, workers and jobs. Each finding says what to do. Exit 1 when a check failed."""
    oldest = duration("--max-age", max_age)
    findings = check_settings(session)
    app, loaded = await check_app(session)
    findings += loaded
    try:
        plain = session.plain() if session.settings["url"] is not None or app is None else app
    except QueueError as error:
        findings.append(Finding("url", "fail", str(error), "name a store: --url, MILLRACE_URL or pyproject.toml"))
    else:
        findings += await _live(session, plain, app, oldest, quick)
    return _report(session, findings, strict)


async def _live(session: Session, plain: App, app: App | None, oldest: int, quick: bool) -> list[Finding]:
    """What can be asked of the store, as far as it lets itself be opened."""
    findings = await check_place(session, plain)
    if any(finding.status == "fail" for finding in findings):
        return findings
    opened = await guarded("open", plain.connected(), "see docs/stores.md; nothing else can be checked until it opens")
    if isinstance(opened, Finding):
        return [*findings, opened]
    try:
        findings += await check_store(opened, quick)
        findings += await check_objects(opened, quick)
        findings += await check_postgres(opened)
        findings += await check_redis(opened)
        jobs = await guarded("jobs", check_jobs(plain, opened, app, oldest), "mend the store first, as said above")
        findings += [jobs] if isinstance(jobs, Finding) else jobs
        findings += check_reports(opened)
    finally:
        await plain.close()
    return findings


def _report(session: Session, findings: list[Finding], strict: bool) -> int:
    counts = {status: sum(one.status == status for one in findings) for status in ("ok", "warn", "fail")}
    bad = counts["fail"] > 0 or (strict and counts["warn"] > 0)
    if session.output.json:
        checks = [{"check": one.check, "status": one.status, "found": one.found, "do": one.do} for one in findings]
        session.output.document({"healthy": not bad, **counts, "checks": checks})
    else:
        rows = [(Word(one.status), one.check, one.found, one.do if one.status != "ok" else None) for one in findings]
        session.output.table(("status", "check", "found", "do"), rows)
        words = f"{counts['ok']} in order, {plural(counts['warn'], 'warning')}, {plural(counts['fail'], 'failure')}"
        session.output.say(words)
    return exits.NO if bad else exits.OK
