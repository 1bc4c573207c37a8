"""`millrace init`: creates a store and, on request, a first app."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from millrace.app.app import App
from millrace.cli import exits
from millrace.cli.init.bucket import SetupStep, set_up
from millrace.cli.init.folder import look_at_folder
from millrace.cli.paths import path_option
from millrace.cli.session import CommandSession, url_of
from millrace.cli.store_url import file_of, folder_of, scheme_of
from millrace.domain.errors import InvalidInput

EXAMPLES = {
    "init": (
        "Examples:\n"
        "  millrace init                                  sqlite:///jobs.db\n"
        "  millrace init --url sqlite:////var/lib/app/jobs.db\n"
        "  millrace init --example tasks.py               and a first app\n"
        "  millrace init --url file:///var/lib/app/jobs   a directory\n"
        "  millrace init --url postgresql://db/jobs       a schema in a database; --sql prints its statements\n"
        "  millrace init --url s3://jobs/shop --dry-run   what would be set on the bucket",
    )
}
DEFAULT_URL = "sqlite:///jobs.db"
EXAMPLE = '''"""A first app. Run it with: millrace worker --app {module}:app"""

from millrace import App

app = App({url!r})


@app.task(queue="mail", max_attempts=5, timeout=30)
async def send_email(to: str, template: str = "welcome") -> str:
    return f"{{template}} sent to {{to}}"
'''


async def init(
    session: CommandSession,
    example: Annotated[str | None, path_option("--example", "FILE", "Write a small app to this new file.", str)] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be done.")] = False,
    sql: Annotated[
        bool, typer.Option("--sql", help="PostgreSQL only: print the SQL that creates the schema, and run nothing.")
    ] = False,
    origin: Annotated[
        list[str] | None,
        typer.Option(
            "--origin",
            help="Buckets only: a web origin that may access it from a browser; may be repeated.",
            metavar="URL",
        ),
    ] = None,
    history_days: Annotated[
        int | None,
        typer.Option(
            "--history-days", min=1, max=36_500, metavar="N", help="Buckets only: days to keep old versions of jobs."
        ),
    ] = None,
    no_dashboard: Annotated[
        bool, typer.Option("--no-dashboard", help="Buckets only: do not install the dashboard under ui/.")
    ] = False,
) -> int:
    """Create a store. If the store exists, check it and leave it unchanged.

    A bucket is created if necessary. Versioning is turned on, and lifecycle rules remove objects that would accumulate.
    The files of the dashboard are put under ui/; this page reads the bucket without a server.
    """
    url = session.settings["url"]
    app = session.plain() if url is not None or session.has_app else App(DEFAULT_URL)
    shown = url_of(app)
    if sql:
        return _print_sql(shown)
    if scheme_of(shown) != "s3" and (origin or history_days or no_dashboard):
        raise InvalidInput("--origin, --history-days and --no-dashboard are for a bucket: --url s3://bucket/prefix")
    written = None if example is None else _example_file(example)
    there = _is_there(shown)
    steps = await _prepared(session, app, origin or [], history_days, dry_run, not no_dashboard)
    if any(step.status == "failed" and step.needed for step in steps):
        return _failed(session, shown, steps)
    if not dry_run:
        async with session.connected(app, create=True):
            pass  # opening the store creates it
        for step in steps:
            step.status = "done" if step.status == "to do" else step.status
        if written is not None:
            written.write_text(EXAMPLE.format(module=written.stem, url=shown), "utf-8")
    there = there if not steps else all(step.status == "was so" for step in steps)
    _report(session, shown, steps, there, dry_run, None if dry_run else written)
    return exits.OK if all(step.status != "failed" for step in steps) else exits.NO


def _print_sql(url: str) -> int:
    if scheme_of(url) not in ("postgresql", "postgres"):
        raise InvalidInput("--sql is for a PostgreSQL store: --url postgresql://host/database")
    from millrace.store.postgres.address import Address
    from millrace.store.postgres.migrate import script

    print(script(Address.from_url(url).schema))
    return exits.OK


async def _prepared(
    session: CommandSession, app: App, origins: list[str], history_days: int | None, dry_run: bool, dashboard: bool
) -> list[SetupStep]:
    if scheme_of(url_of(app)) == "s3":
        redact = tuple(session.settings["redact"] or ()) if dashboard else None
        return await set_up(url_of(app), origins, history_days, dry_run, session.environment(), redact)
    folder, file = folder_of(url_of(app)), file_of(url_of(app))
    if file is not None and dry_run:
        there = file.exists()
        return [SetupStep("file", "was so" if there else "to do", f"{file} {'exists' if there else 'is created'}")]
    return [] if folder is None else look_at_folder(folder)


def _is_there(url: str) -> bool:
    file = file_of(url)
    return file is not None and file.exists()


def _failed(session: CommandSession, url: str, steps: list[SetupStep]) -> int:
    if session.output.json:
        session.output.document({"url": url, "created": False, "ready": False, "steps": _plain(steps)})
    for step in steps:
        session.output.say(f"{step.status:>7}  {step.what}: {step.words}")
    session.output.say("The store is not ready. Fix what failed and run this again; steps already done are skipped.")
    return exits.STORE


def _report(
    session: CommandSession, url: str, steps: list[SetupStep], there: bool, dry_run: bool, written: Path | None
) -> None:
    if session.output.json:
        file = file_of(url)
        names = {"file": None if file is None else str(file), "example": None if written is None else str(written)}
        made = any(step.what in ("bucket", "directory") and step.status == "done" for step in steps)
        document: dict[str, Any] = {"url": url, "created": made if steps else not there, **names}
        if steps or dry_run:
            document |= {"dry_run": dry_run, "steps": _plain(steps)}
        session.output.document(document)
        return
    print(url)
    for step in steps:
        session.output.say(f"{step.status:>7}  {step.what}: {step.words}")
    if dry_run:
        session.output.say("Nothing was changed." if not there else "There is nothing to do. Nothing was changed.")
        return
    session.output.say("The store is ready." if not there else "The store already exists and is ready.")
    exports = [f"MILLRACE_URL={url}"] if session.settings["url"] is None and not session.has_app else []
    exports += [] if written is None else [f"MILLRACE_APP={written.stem}:app"]
    if exports:
        session.output.say(f"Next: export {' '.join(exports)}")
    if written is not None:
        session.output.say('Then: millrace worker\nand:  millrace submit send_email \'{"to": "ada@example.com"}\'')


def _plain(steps: list[SetupStep]) -> list[dict[str, str]]:
    return [{"step": step.what, "status": step.status, "words": step.words} for step in steps]


def _example_file(name: str) -> Path:
    file = Path(name)
    try:
        there, folder = file.exists(), file.parent.is_dir()
    except (OSError, ValueError) as error:
        raise InvalidInput(f"--example {name!r} is not a file name: {error}") from None
    if there:
        raise InvalidInput(f"{name} already exists and is not overwritten. Choose another file.")
    if file.suffix != ".py" or not file.stem.isidentifier():
        raise InvalidInput(f"--example takes a Python file such as tasks.py, not {name!r}")
    if not folder:
        raise InvalidInput(f"there is no folder {str(file.parent)!r} for {file.name}")
    return file
