"""Finds the file or directory of a store from its URL, without opening the store."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from millrace.domain.errors import StoreError

OBJECT_SCHEMES = ("file", "s3")


def scheme_of(url: str) -> str:
    return url.partition("://")[0].lower()


def file_of(url: str) -> Path | None:
    """Return the path of the database file of a sqlite:// store; None for other stores."""
    if scheme_of(url) != "sqlite":
        return None
    try:
        path = unquote(urlsplit(url).path.removeprefix("/"))
    except ValueError:
        return None
    return Path(path) if path and "\0" not in path else None


def folder_of(url: str) -> Path | None:
    """Return the directory of a file:// store; None for other stores."""
    if scheme_of(url) != "file":
        return None
    try:
        path = unquote(urlsplit(url).path)
    except ValueError:
        return None
    return Path(path) if path not in ("", "/") and "\0" not in path else None


def require_store(url: str) -> None:
    """Raise StoreError if the store's file or directory is missing, so that a misspelt path does not create an empty
    store.
    """
    file, folder = file_of(url), folder_of(url)
    if file is not None and not file.exists():
        raise StoreError(f"there is no database {file}. Check the path, or create it: millrace init --url {url}")
    if folder is not None and not folder.exists():
        raise StoreError(f"there is no directory {folder}. Check the path, or create it: millrace init --url {url}")
