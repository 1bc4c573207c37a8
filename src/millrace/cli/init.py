"""`millrace init`: make a store, and if wished a first app to run on it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from millrace.cli import exits
from millrace.cli.init_bucket import Step, set_up
from millrace.cli.init_folder import look_at_folder
from millrace.cli.place import file_of, folder_of, scheme_of
from millrace.cli.session import Session, url_of
from millrace.domain.errors import InvalidInput
from millrace.runtime.app import App

EXAMPLES = {
    "init": (
        "Examples:\n"
        "  millrace init                                  sqlite:///jobs.db\n"
        "  millrace init --url sqlite:////var/lib/app/jobs.db\n"
        "  millrace init --example tasks.py               and an app to begin with\n"
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
    session: Session,
    example: Annotated[
        str | None, typer.Option("--example", help="Write a small app to this new file.", metavar="FILE")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,
    sql: Annotated[
        bool, typer.Option("--sql", help="Of PostgreSQL: print the statements that make the schema, and do nothing.")
    ] = False,
    origin: Annotated[
        list[str] | None,
        typer.Option(
            "--origin", help="Of a bucket: a web page that may use it from a browser; may be repeated.", metavar="URL"
        ),
    ] = None,
    history_days: Annotated[
        int | None,
        typer.Option(
            "--history-days", min=1, max=36_500, metavar="N", help="Of a bucket: keep old versions of jobs so long."
        ),
    ] = None,
    no_dashboard: Annotated[
        bool, typer.Option("--no-dashboard", help="Of a bucket: do not put the dashboard's files under ui/.")
    ] = False,
) -> int:
    """Make a store. One that is there already is checked and left as it is.

    A bucket is created if need be, keeps versions from then on, gets lifecycle rules for what would pile up, and the
    dashboard's files under ui/: a page that looks into the bucket with no server.
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
            pass  # to open it is to make it
        for step in steps:
            step.status = "done" if step.status == "to do" else step.status
        if written is not None:
            written.write_text(EXAMPLE.format(module=written.stem, url=shown), "utf-8")
    there = there if not steps else all(step.status == "was so" for step in steps)
    _tell(session, shown, steps, there, dry_run, None if dry_run else written)
    return exits.OK if all(step.status != "failed" for step in steps) else exits.NO


def _print_sql(url: str) -> int:
    if scheme_of(url) not in ("postgresql", "postgres"):
        raise InvalidInput("--sql is for a PostgreSQL store: --url postgresql://host/database")
    from millrace.store.postgres.address import Address
    from millrace.store.postgres.migrate import script

    print(script(Address.from_url(url).schema))
    return exits.OK


async def _prepared(
    session: Session, app: App, origins: list[str], history_days: int | None, dry_run: bool, dashboard: bool
) -> list[Step]:
    if scheme_of(url_of(app)) == "s3":
        redact = tuple(session.settings["redact"] or ()) if dashboard else None
        return await set_up(url_of(app), origins, history_days, dry_run, session.environment(), redact)
    folder, file = folder_of(url_of(app)), file_of(url_of(app))
    if file is not None and dry_run:
        there = file.exists()
        return [Step("file", "was so" if there else "to do", f"{file} {'exists' if there else 'is created'}")]
    return [] if folder is None else look_at_folder(folder)


def _is_there(url: str) -> bool:
    file = file_of(url)
    return file is not None and file.exists()


def _failed(session: Session, url: str, steps: list[Step]) -> int:
    if session.output.json:
        session.output.document({"url": url, "created": False, "ready": False, "steps": _plain(steps)})
    for step in steps:
        session.output.say(f"{step.status:>7}  {step.what}: {step.words}")
    session.output.say("The store is not ready. Set right what failed, and repeat: what was done is not done twice.")
    return exits.STORE


def _tell(session: Session, url: str, steps: list[Step], there: bool, dry_run: bool, written: Path | None) -> None:
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
        session.output.say("Nothing was changed." if not there else "Nothing is to be done, and nothing was changed.")
        return
    session.output.say("The store is ready." if not there else "The store was there already, and is in order.")
    exports = [f"MILLRACE_URL={url}"] if session.settings["url"] is None and not session.has_app else []
    exports += [] if written is None else [f"MILLRACE_APP={written.stem}:app"]
    if exports:
        session.output.say(f"Next: export {' '.join(exports)}")
    if written is not None:
        session.output.say('Then: millrace worker\nand:  millrace submit send_email \'{"to": "ada@example.com"}\'')


def _plain(steps: list[Step]) -> list[dict[str, str]]:
    return [{"step": step.what, "status": step.status, "words": step.words} for step in steps]


def _example_file(name: str) -> Path:
    file = Path(name)
    try:
        there, folder = file.exists(), file.parent.is_dir()
    except (OSError, ValueError) as error:
        raise InvalidInput(f"--example {name!r} is no file name: {error}") from None
    if there:
        raise InvalidInput(f"{name} exists already, and nothing is overwritten. Choose another file.")
    if file.suffix != ".py" or not file.stem.isidentifier():
        raise InvalidInput(f"--example takes a Python file such as tasks.py, not {name!r}")
    if not folder:
        raise InvalidInput(f"there is no folder {str(file.parent)!r} for {file.name}")
    return file
