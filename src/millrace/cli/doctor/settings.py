"""The doctor's checks that need no open store: settings, the app, and the store's location."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from millrace.app.app import App
from millrace.app.format import plural
from millrace.app.settings import masked
from millrace.cli.doctor.finding import Finding, disk
from millrace.cli.doctor.objects import check_bucket, check_folder
from millrace.cli.session import CommandSession, url_of
from millrace.cli.store_url import file_of, folder_of, scheme_of
from millrace.domain.errors import QueueError


def check_settings(session: CommandSession) -> list[Finding]:
    strangers = session.settings.strangers
    if strangers:
        return [
            Finding(
                "settings",
                "warn",
                f"{', '.join(strangers)}: no such setting",
                "see `millrace config` for the valid names",
            )
        ]
    given = sum(value.origin != "default" for value in session.settings.values.values())
    return [Finding("settings", "ok", f"{plural(given, 'setting')} given; see millrace config")]


async def check_app(session: CommandSession) -> tuple[App | None, list[Finding]]:
    name = session.settings["app"]
    if name is None:
        return None, [Finding("app", "ok", "no app is set, so tasks are not compared")]
    try:
        app = session.app()
    except QueueError as error:
        return None, [Finding("app", "fail", str(error), "fix the app, or the value of --app")]
    if not app.tasks:
        return app, [Finding("app", "warn", f"{name} has no tasks", "register functions with @app.task")]
    return app, [Finding("app", "ok", f"{name} with {plural(len(app.tasks), 'task')}")]


async def check_place(session: CommandSession, app: App) -> list[Finding]:
    url = session.settings["url"]
    try:
        shown = app.store.url  # raises on a bad URL or a missing driver
    except QueueError as error:
        place = "the app's store" if url is None else masked(url)
        return [Finding("url", "fail", f"{place}: {error}", "fix the URL, or install the packages that it needs")]
    findings = [Finding("url", "ok", shown)]
    if shown == "memory://":
        findings.append(
            Finding(
                "durability",
                "warn",
                "jobs exist only in one process and are lost when it ends",
                "use sqlite:///jobs.db",
            )
        )
    file, folder = file_of(url_of(app)), folder_of(url_of(app))
    if scheme_of(url_of(app)) == "s3":
        findings += await check_bucket(url_of(app), session.environment())
    if folder is not None:
        findings += check_folder(folder)
    return findings if file is None else [*findings, *_file(file)]


def _file(file: Path) -> list[Finding]:
    if not file.exists():
        return [Finding("file", "fail", f"there is no {file}", "check the path, or create it: millrace init")]
    folder = file.absolute().parent
    if not os.access(file, os.R_OK | os.W_OK) or not os.access(folder, os.W_OK):
        what = "this user cannot write to the file and its folder"
        return [Finding("file", "fail", f"{file}: {what}", "run as its owner: SQLite keeps its log beside the file")]
    findings = [Finding("file", "ok", f"{file}, {file.stat().st_size:,} bytes")]
    others = stat.S_IMODE(file.stat().st_mode) & 0o077
    if others:
        mode = f"{stat.S_IMODE(file.stat().st_mode):o}"
        findings.append(Finding("permissions", "warn", f"other users have access (mode {mode})", f"chmod 600 {file}"))
    else:
        findings.append(Finding("permissions", "ok", "only its owner has access"))
    return [*findings, disk(folder)]
