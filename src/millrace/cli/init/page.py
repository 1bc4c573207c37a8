"""`millrace init` for a bucket: uploads the files of the dashboard, which reads the bucket without a server."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import resources
from importlib.resources.abc import Traversable
from typing import TYPE_CHECKING

from millrace import __version__
from millrace.app.telemetry.redaction import Redaction
from millrace.cli.init.bucket import SetupStep

if TYPE_CHECKING:
    from millrace.store.object.s3.admin import BucketAdmin


def page_step(admin: BucketAdmin, redact: Iterable[str]) -> SetupStep:
    """Return the step that installs the dashboard. This reads the bucket with blocking calls, so run it in a thread."""
    from millrace.store.object.s3.pages import config_of, is_there, page_url, upload

    files = page_files()
    config = config_of(admin.address, files, __version__, Redaction(redact).phrases)
    words = f"{len(files)} files under ui/: {page_url(admin.address)}"
    if is_there(admin, config):
        return SetupStep("dashboard", "was so", words, needed=False)
    return SetupStep("dashboard", "to do", words, lambda: upload(admin, files, config), needed=False)


def page_files() -> dict[str, bytes]:
    """Return the files of the dashboard by path, read from the package. This does not need the `web` extra."""
    found: dict[str, bytes] = {}
    _gather(resources.files("millrace") / "web" / "static", "", found)
    return found


def _gather(folder: Traversable, prefix: str, found: dict[str, bytes]) -> None:
    for entry in sorted(folder.iterdir(), key=lambda one: one.name):
        if entry.is_dir():
            _gather(entry, f"{prefix}{entry.name}/", found)
        else:
            found[f"{prefix}{entry.name}"] = entry.read_bytes()
