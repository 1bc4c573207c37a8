"""One object as a file: what it is, preceded by what it was, each behind it a line that tells whether it is whole.

    {"id": "j1", "state": "waiting", …}
    #millrace 000000000001 0000000002ee 019a8c3f2b11 5f0c…
    {"id": "j1", "state": "running", …}
    #millrace 000000000002 000000000301 019a8c3f2c77 91d2…

The numbers are the revision, the length of the body and the time; the rest is a hash over key, revision, time and body.
What was cut short, written by others, or copied from another name does not pass, and is never served.

A new revision is put behind the others, so nothing is ever overwritten and a write that was cut short leaves what was
there. One that must be on the disk before anybody sees it carries, instead of the word `millrace`, the name of the
boot it was written in. It counts when the word is put there, and also after the machine was started again: then it
was either acknowledged, or may as well have happened.
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
NO_BOOT = b"????????"  # this machine does not name its boots: such a revision never counts by itself
TRAILER_SIZE = 83
# The word, a boot's name, or, where a power loss came in the middle of putting the word in, some of both.
_WORD = rb"[m0-9a-f?][i0-9a-f?][l0-9a-f?]{2}[r0-9a-f?][0-9a-f?]{3}"
_TRAILER = re.compile(rb"\n#(" + _WORD + rb") ([0-9a-f]{12}) ([0-9a-f]{12}) ([0-9a-f]{12}) ([0-9a-f]{32})\n")


class Torn(Exception):
    """The file is not one that a driver wrote, or holds not one whole revision."""


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
    """A whole revision and where in the file it ends."""

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
    """The bytes to write, and the tag of this revision."""
    digest = _digest(key, body, revision, at)
    content = b"%b\n#%b %012x %012x %012x %b\n" % (body, word, revision, len(body), at, digest.encode())
    return content, f"{revision}-{digest}"


def place_of_word(body: bytes) -> int:
    """Where the word stands, from the start of the sealed bytes."""
    return len(body) + 2


def newest(key: str, content: bytes) -> Revision:
    """What the object is."""
    for revision in revisions(key, content):
        return revision
    raise Torn


def revisions(key: str, content: bytes) -> Iterator[Revision]:
    """Those that count, newest first. No body but the first contains a line break, so what looks like a trailer is one
    or is part of a write that was cut short."""
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
        last = content.rfind(b"\n#", 0, end - TRAILER_SIZE + 1)  # not whole: the line before it, if there is one
        end = last + TRAILER_SIZE


class Summary(msgspec.Struct, frozen=True):
    """Of what an open file holds: its tag, the length of its body and where it ends."""

    tag: str
    length: int
    end: int


def summary(key: str, file: int) -> Summary:
    """Only the last revision is read, unless that one was cut short."""
    size = os.fstat(file).st_size
    if size >= TRAILER_SIZE:
        trailer = _trailer(os.pread(file, TRAILER_SIZE, size - TRAILER_SIZE))
        start = -1 if trailer is None else size - TRAILER_SIZE - trailer.length
        if trailer is not None and trailer.counts and start >= 0:
            body = os.pread(file, trailer.length, start)
            if trailer.digest == _digest(key, body, trailer.revision, trailer.at):
                return Summary(trailer.tag, trailer.length, size)
    found = newest(key, os.pread(file, size, 0))
    return Summary(found.tag, len(found.body), found.end)


def revision_of(tag: str) -> int:
    """0 for a tag that no directory ever gave out."""
    number = tag.partition("-")[0]
    return int(number) if number.isascii() and number.isdigit() and len(number) < 15 else 0


def read_all(file: int) -> bytes:
    size = os.fstat(file).st_size
    content = os.read(file, size + 1)
    while len(content) < size:  # a large file may come in pieces
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
