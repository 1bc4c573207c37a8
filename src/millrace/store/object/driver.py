"""What a driver does: one attempt at a time, answered honestly.

A driver does not retry and does not guess. Of each write it says that it was done, was refused, met a conflict, or that
nobody knows; `Blobs` makes certainty of it. What asking again cannot mend (no such bucket, no permission, a full disk)
is raised as a plain StoreError.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from enum import Enum
from typing import Protocol, TypeAlias, runtime_checkable

import msgspec

from millrace.domain.errors import StoreError


class NoAnswer(StoreError):
    """The store gave no usable answer; asking again may help."""


class Expect(Enum):
    """What a write expects to find, where it is not a certain tag."""

    ABSENT = "absent"
    ANYTHING = "anything"


class Unchanged(Enum):
    """The answer of a conditional read: what is there still has the tag you named."""

    UNCHANGED = "unchanged"


UNCHANGED = Unchanged.UNCHANGED


class Blob(msgspec.Struct, frozen=True):
    """One object as it was read. The tag changes with every write and is compared, never interpreted."""

    key: str
    body: bytes
    tag: str
    modified: int


class Want(msgspec.Struct, frozen=True):
    key: str
    unless: str | None = None  # a tag: do not send what I have


class Write(msgspec.Struct, frozen=True):
    """`durable` is about power loss, on a driver that has the choice; a process kill never undoes an answered write."""

    key: str
    body: bytes
    expect: str | Expect = Expect.ABSENT
    durable: bool = True


class Done(msgspec.Struct, frozen=True):
    tag: str | None  # None: the answer did not tell it
    versioned: bool = False  # the store says that it keeps what was there before


class Refused(msgspec.Struct, frozen=True):
    """What is there is not what the write expected."""


class Conflict(msgspec.Struct, frozen=True):
    """Not done, because another write of this object was under way (409)."""


class Trouble(msgspec.Struct, frozen=True):
    """No usable answer. A write may have been done, or may still be."""

    reason: str


Answer: TypeAlias = Done | Refused | Conflict | Trouble
Read: TypeAlias = Blob | Unchanged | Trouble | None


class Entry(msgspec.Struct, frozen=True):
    key: str
    size: int
    modified: int


class Listing(msgspec.Struct, frozen=True):
    """Entries in the order of their keys; `truncated` when there are more after the last.

    A full page of 1,000 may say so although nothing follows: a bucket would have to be asked twice to be sure.
    """

    entries: tuple[Entry, ...]
    truncated: bool = False


class Version(msgspec.Struct, frozen=True):
    id: str
    modified: int
    size: int
    deleted: bool = False  # it says that the object was deleted then


class VersionPage(msgspec.Struct, frozen=True):
    """Newest first; `next` is where the following page starts, None at the end."""

    versions: tuple[Version, ...]
    next: str | None = None


class Driver(Protocol):
    """`requests` counts what was sent, by kind: get, put, list, delete, versions, clock."""

    @property
    def url(self) -> str: ...  # without credentials
    @property
    def durability(self) -> str: ...  # what an answered write survives, in words
    @property
    def keeps_versions(self) -> bool: ...
    @property
    def refusal_is_final(self) -> bool: ...  # False where something on the way may send a request twice
    @property
    def requests(self) -> Counter[str]: ...

    async def connect(self) -> None: ...
    async def close(self) -> None: ...
    async def read(self, wants: Sequence[Want]) -> Sequence[Read]: ...
    async def write(self, writes: Sequence[Write]) -> Sequence[Answer]: ...
    async def delete(self, keys: Sequence[str]) -> None: ...
    async def list(self, prefix: str, after: str | None, limit: int) -> Listing: ...
    async def versions(self, key: str, after: str | None, limit: int) -> VersionPage: ...
    async def read_version(self, key: str, version: str) -> Blob | None: ...
    async def now(self) -> int: ...
    def mark(self, prefix: str) -> int: ...
    async def wait_for_change(self, prefix: str, timeout: float, since: int | None = None) -> bool: ...


@runtime_checkable
class Removing(Protocol):
    """A driver that can remove an object exactly: only if what is there still has this tag."""

    async def remove(self, key: str, tag: str) -> bool:
        """False: it is not as named any more, or this place offers no way to be exact."""
        ...
