"""Lists keys: walks the folders in key order, and only those folders that can contain matching keys.

Bodies are not read. For a file with several revisions, the last trailer is read to find the size. The cost of a page
depends only on the folders that it covers, not on other prefixes. Folders that have been empty for a while are removed
on the way.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from contextlib import suppress

from millrace.store.object.directory.file_format import TRAILER_SIZE, Torn, last_revision
from millrace.store.object.directory.folder import OWN, StoreFolder
from millrace.store.object.driver import Listed, Listing
from millrace.store.object.names import folder_name, part_of_file, part_of_folder

EMPTY = -TRAILER_SIZE
EMPTY_FOR = 10  # seconds; removing a folder that is used again soon costs more than walking through it


def page(
    home: StoreFolder,
    prefix: str,
    after: str | None,
    limit: int,
    markers: tuple[str, ...] = (),
    appended: tuple[str, ...] = (),
) -> tuple[Listing, list[str]]:
    """Return one page of keys, and the keys of files that seem incomplete. The caller checks these files under their
    lock.
    """
    start = "/".join([home.root, *map(folder_name, prefix.split("/")[:-1])])
    found: list[Listed] = []
    short: list[str] = []
    for entry in _entries(home, start, prefix, after or "", appended):
        if entry.size == EMPTY and entry.key.startswith(markers):
            entry = Listed(entry.key, 0, entry.modified)
        if entry.size < 0:
            short.append(entry.key)
        elif len(found) == limit:
            return Listing(tuple(found), truncated=True), short
        else:
            found.append(entry)
    return Listing(tuple(found)), short


def _entries(home: StoreFolder, folder: str, base: str, after: str, appended: tuple[str, ...]) -> Iterator[Listed]:
    """Yield the entries below a folder. `base` is the part of the key that the folder stands for, including the last
    slash.
    """
    for place, item in sorted(_below(home, folder, base, after), key=lambda found: found[0]):
        if place.endswith("/"):
            yield from _entries(home, item.path, place, after, appended)
            continue
        try:
            status = item.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue  # deleted meanwhile
        size = _last_size(item.path, place) if place.startswith(appended) else status.st_size - TRAILER_SIZE
        yield Listed(place, size, status.st_mtime_ns // 1_000_000)


def _last_size(path: str, key: str) -> int:
    """Return the size of the newest revision of an object. A negative size means that the file must be checked."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ELOOP):
            raise
        return EMPTY
    try:
        return len(last_revision(key, file).body)
    except Torn:
        return EMPTY
    finally:
        os.close(file)


def _below(home: StoreFolder, folder: str, base: str, after: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Yield (text, item) for each file and subfolder of a folder.

    For a file, the text is its key. For a subfolder, it is the common start of all keys in it, with a slash at the end.
    Items sorted by these texts are in the order of their keys.
    """
    try:
        items = list(os.scandir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return  # removed because it was empty, or never there
    if not items and base and not home.reads_only:
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
    """Remove a folder that has been empty for a while.

    Its parent is removed by a later listing. A writer that needs the folder creates it again.
    """
    with suppress(OSError):
        if os.stat(folder).st_mtime < time.time() - EMPTY_FOR:
            os.rmdir(folder)
