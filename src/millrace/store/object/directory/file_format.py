"""The file of one object: all its kept revisions, each followed by a trailer line that proves that it is complete.

    {"id": "j1", "state": "waiting", …}
    #millrace 000000000001 0000000002ee 019a8c3f2b11 5f0c…
    {"id": "j1", "state": "running", …}
    #millrace 000000000002 000000000301 019a8c3f2c77 91d2…

The trailer has the revision number, the length of the body, the time, and a hash of key, revision, time and body. A
revision that was truncated, written by another program, or copied from another key fails the check and is never
returned to a reader.

A new revision is appended, so nothing is overwritten, and an incomplete write leaves the previous revision intact.

Some revisions must be flushed before they become visible. Such a revision is first written with the id of the current
boot in place of the word `millrace`. It becomes valid when this word is written there. It is also valid after a reboot
of the machine: then the write was either confirmed, or its writer never learned the outcome.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from functools import cache
from hashlib import blake2b
from pathlib import Path

import msgspec

LANDED = b"millrace"
NO_BOOT = b"????????"  # this machine has no boot id: such a revision never becomes valid by itself
TRAILER_SIZE = 83
# The word, a boot id, or, after a power loss while the word was written, a mix of both.
_WORD = rb"[m0-9a-f?][i0-9a-f?][l0-9a-f?]{2}[r0-9a-f?][0-9a-f?]{3}"
_TRAILER = re.compile(rb"\n#(" + _WORD + rb") ([0-9a-f]{12}) ([0-9a-f]{12}) ([0-9a-f]{12}) ([0-9a-f]{32})\n")


class Torn(Exception):
    """Raised for a file that contains no complete revision or was not written by this driver."""


class Trailer(msgspec.Struct, frozen=True):
    word: bytes
    revision: int
    length: int
    at: int
    digest: str

    @property
    def tag(self) -> str:
        return f"{self.revision}-{self.digest}"

    @property
    def counts(self) -> bool:
        return self.word == LANDED or self.word not in (this_boot(), NO_BOOT)


class Revision(msgspec.Struct, frozen=True):
    """A complete revision. `end` is the offset in the file where it ends."""

    body: bytes
    tag: str
    at: int
    end: int


@cache
def this_boot() -> bytes:
    try:
        text = Path("/proc/sys/kernel/random/boot_id").read_bytes()
    except OSError:
        return NO_BOOT
    return text[:8] if re.match(rb"[0-9a-f]{8}", text) else NO_BOOT


def seal(key: str, body: bytes, revision: int, at: int, word: bytes = LANDED) -> tuple[bytes, str]:
    """Return the bytes to write for this revision, which are the body and the trailer line, and the tag of the
    revision.
    """
    digest = _digest(key, body, revision, at)
    content = b"%b\n#%b %012x %012x %012x %b\n" % (body, word, revision, len(body), at, digest.encode())
    return content, f"{revision}-{digest}"


def place_of_word(body: bytes) -> int:
    """Return the offset of the word that makes a revision valid, counted from the start of the revision."""
    return len(body) + 2


def newest(key: str, content: bytes) -> Revision:
    """Return the newest valid revision. Raise Torn if there is none."""
    for revision in revisions(key, content):
        return revision
    raise Torn


def revisions(key: str, content: bytes) -> Iterator[Revision]:
    """Yield the valid revisions, newest first.

    Only the first body in a file may contain line breaks. So in later bodies, a line that looks like a trailer is a
    trailer, or a part of an incomplete write.
    """
    end = len(content)
    while end >= TRAILER_SIZE:
        trailer = _trailer(content[end - TRAILER_SIZE : end])
        start = end if trailer is None else end - TRAILER_SIZE - trailer.length
        if trailer is not None and start >= 0:
            body = content[start : end - TRAILER_SIZE]
            if trailer.digest == _digest(key, body, trailer.revision, trailer.at):
                if trailer.counts:
                    yield Revision(body, trailer.tag, trailer.at, end)
                end = start
                continue
        last = content.rfind(b"\n#", 0, end - TRAILER_SIZE + 1)  # incomplete: try the line before it, if there is one
        end = last + TRAILER_SIZE


def last_revision(key: str, file: int) -> Revision:
    """Return the newest valid revision of an open file. Raise Torn if there is none.

    Earlier revisions are read only if the last one is not valid.
    """
    size = os.fstat(file).st_size
    if size >= TRAILER_SIZE:
        trailer = _trailer(os.pread(file, TRAILER_SIZE, size - TRAILER_SIZE))
        start = -1 if trailer is None else size - TRAILER_SIZE - trailer.length
        if trailer is not None and trailer.counts and start >= 0:
            body = os.pread(file, trailer.length, start)
            if trailer.digest == _digest(key, body, trailer.revision, trailer.at):
                return Revision(body, trailer.tag, trailer.at, size)
    return newest(key, os.pread(file, size, 0))


def revision_of(tag: str) -> int:
    """Return the revision number in a tag; 0 for a tag that does not come from a directory."""
    number = tag.partition("-")[0]
    return int(number) if number.isascii() and number.isdigit() and len(number) < 15 else 0


def read_all(file: int) -> bytes:
    size = os.fstat(file).st_size
    content = os.read(file, size + 1)
    while len(content) < size:  # a large file may take several reads
        more = os.read(file, size - len(content))
        if not more:
            break
        content += more
    return content


def write_all(file: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(file, rest) :]


def _trailer(line: bytes) -> Trailer | None:
    found = _TRAILER.fullmatch(line)
    if found is None:
        return None
    word, revision, length, at, digest = found.groups()
    return Trailer(word, int(revision, 16), int(length, 16), int(at, 16), digest.decode())


def _digest(key: str, body: bytes, revision: int, at: int) -> str:
    return blake2b(b"%b\n%d\n%d\n%b" % (key.encode(), revision, at, body), digest_size=16).hexdigest()
