"""`millrace doctor`: checks for common problems and says how to fix them."""

from __future__ import annotations

from typing import Annotated

import typer

from millrace.app.app import App
from millrace.app.format import plural
from millrace.cli import exits
from millrace.cli.doctor.finding import Finding, guarded
from millrace.cli.doctor.jobs import check_jobs
from millrace.cli.doctor.objects import check_objects, check_reports
from millrace.cli.doctor.postgres import check_postgres
from millrace.cli.doctor.redis import check_redis
from millrace.cli.doctor.settings import check_app, check_place, check_settings
from millrace.cli.doctor.store import check_store
from millrace.cli.output import Word
from millrace.cli.session import CommandSession
from millrace.cli.text import duration
from millrace.domain.errors import QueueError

EXAMPLES = {
    "doctor": (
        "Examples:\n"
        "  millrace doctor\n"
        "  millrace doctor --strict                    for deployments: warnings fail too\n"
        "  millrace doctor --json | jq '.checks[] | select(.status != \"ok\")'",
    )
}


async def doctor(
    session: CommandSession,
    max_age: Annotated[
        str, typer.Option("--max-age", help="Warn if a job has been ready for longer.", metavar="DURATION")
    ] = "5m",
    strict: Annotated[bool, typer.Option("--strict", help="Warnings count as failures.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Skip checks that read large parts of the store.")] = False,
) -> int:
    """Check settings, store, workers and jobs. Each finding says what to do. Exit 1 if a check fails."""
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


async def _live(session: CommandSession, plain: App, app: App | None, oldest: int, quick: bool) -> list[Finding]:
    """Run the checks of the store and return their findings. If the store cannot be opened, most of these checks are
    skipped.
    """
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
        jobs = await guarded("jobs", check_jobs(plain, opened, app, oldest), "fix the store first, as described above")
        findings += [jobs] if isinstance(jobs, Finding) else jobs
        findings += check_reports(opened)
    finally:
        await plain.close()
    return findings


def _report(session: CommandSession, findings: list[Finding], strict: bool) -> int:
    counts = {status: sum(one.status == status for one in findings) for status in ("ok", "warn", "fail")}
    bad = counts["fail"] > 0 or (strict and counts["warn"] > 0)
    if session.output.json:
        checks = [{"check": one.check, "status": one.status, "found": one.found, "do": one.do} for one in findings]
        session.output.document({"healthy": not bad, **counts, "checks": checks})
    else:
        rows = [(Word(one.status), one.check, one.found, one.do if one.status != "ok" else None) for one in findings]
        session.output.table(("status", "check", "found", "do"), rows)
        words = f"{counts['ok']} ok, {plural(counts['warn'], 'warning')}, {plural(counts['fail'], 'failure')}"
        session.output.say(words)
    return exits.NO if bad else exits.OK
