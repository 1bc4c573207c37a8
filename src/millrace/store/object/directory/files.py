"""One object as a file: its body as it is, and behind it a line that tells whether the file is whole and ours.

    {"id": "j1", …}
    #millrace 000000000007 0000000002ee 5f0c…

The numbers are the revision and the length of the body; the rest is a hash over key, revision and body. A file that
was cut short, written by others, or copied to another name does not pass, and is never served.
"""

from __future__ import annotations

import os
import re
from hashlib import blake2b

_TRAILER = re.compile(rb"\n#millrace ([0-9a-f]{12}) ([0-9a-f]{12}) ([0-9a-f]{32})\n")
TRAILER_SIZE = 70


class Torn(Exception):
    """The file is not one that a driver wrote, or not all of it."""


def seal(key: str, body: bytes, revision: int) -> tuple[bytes, str]:
    """The content of the file, and the tag of this revision."""
    digest = _digest(key, body, revision)
    return b"%b\n#millrace %012x %012x %b\n" % (body, revision, len(body), digest.encode()), f"{revision}-{digest}"


def unseal(key: str, content: bytes) -> tuple[bytes, str]:
    """Body and tag, if the file is whole."""
    revision, length, digest = _fields(content[-TRAILER_SIZE:])
    body = content[:-TRAILER_SIZE]
    if length != len(body) or digest != _digest(key, body, revision):
        raise Torn
    return body, f"{revision}-{digest}"


def tag_of(file: int) -> str:
    """The tag in an open file, without reading its body."""
    size = os.fstat(file).st_size
    if size < TRAILER_SIZE:
        raise Torn
    revision, length, digest = _fields(os.pread(file, TRAILER_SIZE, size - TRAILER_SIZE))
    if length != size - TRAILER_SIZE:
        raise Torn
    return f"{revision}-{digest}"


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


def _fields(line: bytes) -> tuple[int, int, str]:
    found = _TRAILER.fullmatch(line)
    if found is None:
        raise Torn
    return int(found.group(1), 16), int(found.group(2), 16), found.group(3).decode()


def _digest(key: str, body: bytes, revision: int) -> str:
    return blake2b(b"%b\n%d\n%b" % (key.encode(), revision, body), digest_size=16).hexdigest()
