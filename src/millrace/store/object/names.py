"""Valid keys, and their file names.

The rules are those of the most restrictive store, and apply to all stores. So objects can be moved between a directory
and a bucket under the same names. Keys are compared by code point, which is also the order of their UTF-8 bytes.

File names must not leave the directory, must not collide on a disk that ignores case (`Job` and `job`), and must not be
both a file and a folder (`a` and `a/b`). So everything except lower-case letters, digits and a few marks is written as
`%xx`. A dot is allowed in the last part only, and a last part without a dot ends in a bare `%`. So the name alone shows
whether it is a file or a folder.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from millrace.domain.errors import InvalidInput

MAX_KEY = 800  # bytes; S3 takes 1,024, of which the store's own prefix needs some
MAX_NAME = 240  # bytes of a part as a file name; most file systems take 255

_START, _REST = "[a-z0-9_=+,@-]", "[a-z0-9._=+,@-]"
# Folders short enough even with every dot written as %2e; a dot in the last part is written as it is.
_PLAIN = re.compile(rf"(?:{_START}{_REST}{{0,79}}/)*{_START}{_REST}{{0,230}}")
_UNFIT = re.compile("[\x00-\x1f\x7f\ud800-\udfff\ufffe\uffff]")  # characters that an XML listing cannot contain
_PLAIN_FOLDER = re.compile(r"[a-z0-9_=+,@-]+")
_PLAIN_LEAF = re.compile(r"[a-z0-9_=+,@-][a-z0-9._=+,@-]*")
_LITERAL = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789_=+,@-")
_DOT = ord(".")
_ESCAPE = re.compile(r"%([0-9a-f]{2})")


def check_key(key: Any) -> str:
    """Return the key. Raise InvalidInput if not every store allows this key."""
    if isinstance(key, str) and len(key) <= MAX_KEY and _PLAIN.fullmatch(key):
        return key
    if not isinstance(key, str) or not key:
        raise InvalidInput(f"a key is a non-empty text, not {key!r}")
    if found := _UNFIT.search(key):
        raise InvalidInput(f"a key holds no control characters or surrogates, but {key!r} has {found.group()!r}")
    if len(key.encode()) > MAX_KEY:
        raise InvalidInput(f"a key has at most {MAX_KEY} bytes, and {key[:40]!r}… has {len(key.encode())}")
    *folders, leaf = key.split("/")
    if any(part in ("", ".", "..") for part in (*folders, leaf)):
        raise InvalidInput(f"the parts of a key are not empty, '.' or '..', but those of {key!r} are")
    for name in (*map(folder_name, folders), file_name(leaf)):
        if len(name) > MAX_NAME:
            raise InvalidInput(
                f"a part of key {key[:40]!r}… takes {len(name)} bytes as a file name, and {MAX_NAME} is the most. "
                "Use a hash for long names."
            )
    return key


def check_prefix(prefix: Any) -> str:
    """Return the prefix. Raise InvalidInput if it is not empty and does not end in a slash.

    Not every driver can list such a prefix.
    """
    if prefix == "":
        return ""
    if not isinstance(prefix, str) or not prefix.endswith("/"):
        raise InvalidInput(f"a prefix is empty or ends in '/', and {prefix!r} does not")
    check_key(prefix[:-1])
    return prefix


@lru_cache(maxsize=4096)
def folder_name(part: str) -> str:
    return _escaped(part, dots=False)


def file_name(part: str) -> str:
    name = _escaped(part, dots=True)
    return name if "." in name else name + "%"


def _escaped(part: str, dots: bool) -> str:
    if (_PLAIN_LEAF if dots else _PLAIN_FOLDER).fullmatch(part):
        return part
    return "".join(
        chr(byte) if byte in _LITERAL or (dots and byte == _DOT and place) else f"%{byte:02x}"
        for place, byte in enumerate(part.encode())
    )


def part_of_folder(name: str) -> str | None:
    """Return the key part that a folder name stands for; None if this driver did not create the folder."""
    part = _unescaped(name)
    return part if part is not None and folder_name(part) == name else None


def part_of_file(name: str) -> str | None:
    part = _unescaped(name.removesuffix("%"))
    return part if part is not None and file_name(part) == name else None


def _unescaped(name: str) -> str | None:
    if "%" not in name:
        return name or None
    try:
        raw = _ESCAPE.sub(lambda found: chr(int(found.group(1), 16)), name).encode("latin-1")
        part = raw.decode()
    except UnicodeError:
        return None
    return None if part in ("", ".", "..") or "/" in part else part


@lru_cache(maxsize=4096)
def path_of(key: str) -> str:
    """Return the path of a key's file, relative to the store's directory."""
    *folders, leaf = key.split("/")
    return "/".join([*map(folder_name, folders), file_name(leaf)])
