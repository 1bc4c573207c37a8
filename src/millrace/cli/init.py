"""`millrace init`: make a store, and if wished a first app to run on it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from millrace.cli import exits
from millrace.cli.place import file_of
from millrace.cli.session import Session, url_of
from millrace.domain.errors import InvalidInput
from millrace.runtime.app import App

EXAMPLES = {
    "init": (
        "Examples:\n"
        "  millrace init                                  sqlite:///jobs.db\n"
        "  millrace init --url sqlite:////var/lib/app/jobs.db\n"
        "  millrace init --example tasks.py               and an app to begin with",
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
) -> int:
    """Make a store. One that is there already is checked and left as it is."""
    url = session.settings["url"]
    app = App(url or DEFAULT_URL) if url is not None or not session.has_app else session.app()
    written = None if example is None else _example_file(example)
    file = file_of(url_of(app))
    there = file is not None and file.exists()
    async with session.connected(app, create=True):
        pass  # to open it is to make it
    if written is not None:
        written.write_text(EXAMPLE.format(module=written.stem, url=url_of(app)), "utf-8")
    if session.output.json:
        names = {"file": None if file is None else str(file), "example": None if written is None else str(written)}
        session.output.document({"url": url_of(app), "created": not there, **names})
        return exits.OK
    print(url_of(app))
    session.output.say("The store is ready." if not there else "The store was there already, and is in order.")
    exports = [f"MILLRACE_URL={url_of(app)}"] if session.settings["url"] is None and not session.has_app else []
    exports += [] if written is None else [f"MILLRACE_APP={written.stem}:app"]
    if exports:
        session.output.say(f"Next: export {' '.join(exports)}")
    if written is not None:
        session.output.say('Then: millrace worker\nand:  millrace submit send_email \'{"to": "ada@example.com"}\'')
    return exits.OK


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
