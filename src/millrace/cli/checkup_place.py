"""The doctor's look from outside: settings, the app, and where the store lies."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from millrace.cli.checkup import Finding, disk
from millrace.cli.checkup_objects import check_bucket, check_folder
from millrace.cli.place import file_of, folder_of, scheme_of
from millrace.cli.session import Session, url_of
from millrace.cli.text import plural
from millrace.domain.errors import QueueError
from millrace.runtime.app import App
from millrace.runtime.settings import masked


def check_settings(session: Session) -> list[Finding]:
    strangers = session.settings.strangers
    if strangers:
        return [
            Finding(
                "settings",
                "warn",
                f"{', '.join(strangers)}: no such setting",
                "see `millrace config` for the names that count",
            )
        ]
    given = sum(value.origin != "default" for value in session.settings.values.values())
    return [Finding("settings", "ok", f"{plural(given, 'setting')} given; see millrace config")]


async def check_app(session: Session) -> tuple[App | None, list[Finding]]:
    name = session.settings["app"]
    if name is None:
        return None, [Finding("app", "ok", "none is set; tasks are not compared")]
    try:
        app = session.app()
    except QueueError as error:
        return None, [Finding("app", "fail", str(error), "correct the app, or --app")]
    if not app.tasks:
        return app, [Finding("app", "warn", f"{name} has no tasks", "register functions with @app.task")]
    return app, [Finding("app", "ok", f"{name} with {plural(len(app.tasks), 'task')}")]


async def check_place(session: Session, app: App) -> list[Finding]:
    url = session.settings["url"]
    try:
        shown = app.store.url  # finds a bad URL and a missing driver
    except QueueError as error:
        place = "the app's store" if url is None else masked(url)
        return [Finding("url", "fail", f"{place}: {error}", "correct the URL, or install what it needs")]
    findings = [Finding("url", "ok", shown)]
    if shown == "memory://":
        findings.append(
            Finding("durability", "warn", "jobs live in one process and end with it", "use sqlite:///jobs.db")
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
        what = "this user may not write the file and its folder"
        return [Finding("file", "fail", f"{file}: {what}", "run as its owner: SQLite keeps its log beside the file")]
    findings = [Finding("file", "ok", f"{file}, {file.stat().st_size:,} bytes")]
    others = stat.S_IMODE(file.stat().st_mode) & 0o077
    if others:
        mode = f"{stat.S_IMODE(file.stat().st_mode):o}"
        findings.append(Finding("permissions", "warn", f"others may read it (mode {mode})", f"chmod 600 {file}"))
    else:
        findings.append(Finding("permissions", "ok", "its owner only"))
    return [*findings, disk(folder)]
