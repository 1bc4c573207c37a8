"""`millrace init` for a bucket: the dashboard's files, which then look into the bucket with no server (O-27…29)."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import resources
from importlib.resources.abc import Traversable
from typing import TYPE_CHECKING

from millrace import __version__
from millrace.cli.init_bucket import Step
from millrace.runtime.redaction import Redaction

if TYPE_CHECKING:
    from millrace.store.object.s3.admin import BucketAdmin


def page_step(admin: BucketAdmin, redact: Iterable[str]) -> Step:
    """Reads what is there, so it blocks."""
    from millrace.store.object.s3.pages import config_of, is_there, page_url, upload

    files = page_files()
    config = config_of(admin.address, files, __version__, Redaction(redact).phrases)
    words = f"{len(files)} files under ui/: {page_url(admin.address)}"
    if is_there(admin, config):
        return Step("dashboard", "was so", words, needed=False)
    return Step("dashboard", "to do", words, lambda: upload(admin, files, config), needed=False)


def page_files() -> dict[str, bytes]:
    """By path, as they lie in the package; the web extra is not needed to read them."""
    found: dict[str, bytes] = {}
    _gather(resources.files("millrace") / "web" / "static", "", found)
    return found


def _gather(folder: Traversable, prefix: str, found: dict[str, bytes]) -> None:
    for entry in sorted(folder.iterdir(), key=lambda one: one.name):
        if entry.is_dir():
            _gather(entry, f"{prefix}{entry.name}/", found)
        else:
            found[f"{prefix}{entry.name}"] = entry.read_bytes()
