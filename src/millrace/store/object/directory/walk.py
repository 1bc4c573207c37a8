"""Listing: folders are walked in the order of the keys, and only those that can hold what was asked for.

No body is read, but where a file holds versions, the last of them, to say how long it is. A page costs the folders
it passes through, so what lies under other prefixes does not matter. Folders that have been empty for a while are
removed on the way, so that no listing walks through the remains of the past twice.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from contextlib import suppress

from millrace.store.object.directory.files import TRAILER_SIZE, Torn, summary
from millrace.store.object.directory.home import OWN, Home
from millrace.store.object.driver import Entry, Listing
from millrace.store.object.names import folder_name, part_of_file, part_of_folder

EMPTY = -TRAILER_SIZE
EMPTY_FOR = 10  # seconds; to remove a folder that is used again soon costs more than to walk through it


def page(
    home: Home,
    prefix: str,
    after: str | None,
    limit: int,
    markers: tuple[str, ...] = (),
    kept: tuple[str, ...] = (),
) -> tuple[Listing, list[str]]:
    """The page, and keys whose files are too short to be whole: those need a second look, under their lock."""
    start = "/".join([home.root, *map(folder_name, prefix.split("/")[:-1])])
    found: list[Entry] = []
    short: list[str] = []
    for entry in _entries(home, start, prefix, after or "", kept):
        if entry.size == EMPTY and entry.key.startswith(markers):
            entry = Entry(entry.key, 0, entry.modified)
        if entry.size < 0:
            short.append(entry.key)
        elif len(found) == limit:
            return Listing(tuple(found), truncated=True), short
        else:
            found.append(entry)
    return Listing(tuple(found)), short


def _entries(home: Home, folder: str, base: str, after: str, kept: tuple[str, ...]) -> Iterator[Entry]:
    """`base` is the part of the key which the folder stands for, with its slash."""
    for place, item in sorted(_below(home, folder, base, after), key=lambda found: found[0]):
        if place.endswith("/"):
            yield from _entries(home, item.path, place, after, kept)
            continue
        try:
            status = item.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue  # deleted since
        size = _last_size(item.path, place) if place.startswith(kept) else status.st_size - TRAILER_SIZE
        yield Entry(place, size, status.st_mtime_ns // 1_000_000)


def _last_size(path: str, key: str) -> int:
    """Less than nothing for a file that has to be looked at again."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ELOOP):
            raise
        return EMPTY
    try:
        return summary(key, file).length
    except Torn:
        return EMPTY
    finally:
        os.close(file)


def _below(home: Home, folder: str, base: str, after: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Keys and, ending in a slash, beginnings of keys: sorted as texts, they are in the order of all keys below."""
    try:
        items = list(os.scandir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return  # removed since it became empty, or never there
    if not items and base:
        _remove_if_left(folder)
    for item in items:
        if not base and item.name in (OWN, "lost+found"):
            continue
        if item.is_dir(follow_symlinks=False):
            part = part_of_folder(item.name)
            place = f"{base}{part}/"
            if part is None:
                home.pass_over(item.path, "is a folder that no key can have")
            elif place > after or after.startswith(place):
                yield place, item
        elif item.is_file(follow_symlinks=False) and (part := part_of_file(item.name)) is not None:
            if base + part > after:
                yield base + part, item
        else:
            home.put_aside(item.path, "is not a file of this store")


def _remove_if_left(folder: str) -> None:
    """The folder above is seen to be empty by a later listing. Who writes into it just now makes it again."""
    with suppress(OSError):
        if os.stat(folder).st_mtime < time.time() - EMPTY_FOR:
            os.rmdir(folder)
