"""`millrace init` for a directory: what is there before it becomes a store."""

from __future__ import annotations

import stat
from pathlib import Path

from millrace.cli.init_bucket import Step
from millrace.domain.errors import StoreError
from millrace.store.object.directory.home import OWN

OURS = 0o700


def look_at_folder(folder: Path) -> list[Step]:
    """What is to be done, and what was found. Opening the store does it; what is no store is refused here already."""
    try:
        return _steps(folder)
    except OSError as error:
        raise StoreError(f"{folder} cannot be looked at: {error.strerror}. Run as its owner.") from None


def _steps(folder: Path) -> list[Step]:
    if not folder.exists():
        return [Step("directory", "to do", f"{folder} is created, for its owner only (mode 700)", lambda: None)]
    if not folder.is_dir():
        raise StoreError(f"{folder} is a file. Name a directory that is empty, or does not exist yet.")
    mode = stat.S_IMODE(folder.stat().st_mode)
    alone = mode & 0o077 == 0
    words = "only its owner may enter" if alone else f"others may enter it (mode {mode:o}): chmod 700 {folder}"
    found = [Step("permissions", "was so", words, needed=False)]
    if (folder / OWN / "format").exists():
        return [Step("directory", "was so", f"{folder} is a store"), *found]
    strangers = sorted(entry.name for entry in folder.iterdir() if entry.name not in (OWN, "lost+found"))
    if strangers:
        raise StoreError(
            f"{folder} is not empty and not a store: it holds {strangers[0]!r}. "
            "Name an empty directory, or one that does not exist yet."
        )
    return [Step("directory", "to do", f"{folder} is empty, and becomes a store", lambda: None), *found]
