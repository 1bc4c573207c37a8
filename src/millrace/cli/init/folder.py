"""`millrace init` for a directory: checks it before it becomes a store."""

from __future__ import annotations

import stat
from pathlib import Path

from millrace.cli.init.bucket import SetupStep
from millrace.domain.errors import StoreError
from millrace.store.object.directory.folder import OWN

OURS = 0o700


def look_at_folder(folder: Path) -> list[SetupStep]:
    """Return the setup steps for this directory, which are run when the store is opened. Raises StoreError if the
    directory contains other files or cannot be read.
    """
    try:
        return _steps(folder)
    except OSError as error:
        raise StoreError(f"{folder} cannot be read: {error.strerror}. Run as its owner.") from None


def _steps(folder: Path) -> list[SetupStep]:
    if not folder.exists():
        return [
            SetupStep("directory", "to do", f"{folder} is created; only its owner has access (mode 700)", lambda: None)
        ]
    if not folder.is_dir():
        raise StoreError(f"{folder} is a file. Name a directory that is empty, or does not exist yet.")
    mode = stat.S_IMODE(folder.stat().st_mode)
    alone = mode & 0o077 == 0
    words = (
        "only its owner has access" if alone else f"other users have access (mode {mode:o}); run: chmod 700 {folder}"
    )
    found = [SetupStep("permissions", "was so", words, needed=False)]
    if (folder / OWN / "format").exists():
        return [SetupStep("directory", "was so", f"{folder} is a store"), *found]
    strangers = sorted(entry.name for entry in folder.iterdir() if entry.name not in (OWN, "lost+found"))
    if strangers:
        raise StoreError(
            f"{folder} is not empty and is not a store: it contains {strangers[0]!r}. "
            "Name an empty directory, or one that does not exist yet."
        )
    return [SetupStep("directory", "to do", f"{folder} is empty; the store is created in it", lambda: None), *found]
