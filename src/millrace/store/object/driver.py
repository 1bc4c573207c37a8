"""The driver interface: one attempt per call, with an exact report of its outcome.

A driver does not retry and does not guess. It reports each write as done, refused, in conflict, or unknown, and `Blobs`
finds out the final outcome. Errors that a retry cannot fix (a missing bucket, no permission, a full disk) are raised as
StoreError.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from enum import Enum
from typing import Protocol, TypeAlias, runtime_checkable

import msgspec

from millrace.domain.errors import StoreError


class NoAnswer(StoreError):
    """Raised when the store gives no usable answer. A retry may help."""


class Expect(Enum):
    """What a write expects to find, unless it expects an object with a certain tag."""

    ABSENT = "absent"
    ANYTHING = "anything"


class Unchanged(Enum):
    """The result of a conditional read, if the object still has the given tag."""

    UNCHANGED = "unchanged"


UNCHANGED = Unchanged.UNCHANGED


class Blob(msgspec.Struct, frozen=True):
    """One object as it was read. Its tag changes with every write. Tags are only compared, never interpreted."""

    key: str
    body: bytes
    tag: str
    modified: int


class Want(msgspec.Struct, frozen=True):
    key: str
    unless: str | None = None  # a tag: do not return the body if the object still has it


class Write(msgspec.Struct, frozen=True):
    """A write of one object. A confirmed write survives the end of the process.

    `durable` says whether the write must also survive a power loss. Not every driver has this choice.
    """

    key: str
    body: bytes
    expect: str | Expect = Expect.ABSENT
    durable: bool = True


class WriteReply(msgspec.Struct, frozen=True):
    tag: str | None  # None: the answer did not contain it
    versioned: bool = False  # whether the store keeps the previous version


class Refused(msgspec.Struct, frozen=True):
    """The answer to a write that was not done, because the object was not as expected."""


class Conflict(msgspec.Struct, frozen=True):
    """The answer to a write that was not done, because another write of this object was in progress (HTTP 409)."""


class Unavailable(msgspec.Struct, frozen=True):
    """The answer to a write whose outcome is unknown: it may have been done, or may still happen."""

    reason: str


Answer: TypeAlias = WriteReply | Refused | Conflict | Unavailable
Read: TypeAlias = Blob | Unchanged | Unavailable | None


class Listed(msgspec.Struct, frozen=True):
    key: str
    size: int
    modified: int


class Listing(msgspec.Struct, frozen=True):
    """One page of entries in key order. `truncated` means that there may be more after the last one.

    A full page of 1,000 entries may be marked as truncated although nothing follows: only a second request could tell.
    """

    entries: tuple[Listed, ...]
    truncated: bool = False


class Version(msgspec.Struct, frozen=True):
    id: str
    modified: int
    size: int
    deleted: bool = False  # a delete marker


class VersionPage(msgspec.Struct, frozen=True):
    """One page of versions, newest first. `next` is where the next page starts; None if there is no next page."""

    versions: tuple[Version, ...]
    next: str | None = None


class Driver(Protocol):
    """The methods that every driver implements. `requests` counts requests by kind: get, put, list, delete, versions,
    clock.
    """

    @property
    def url(self) -> str: ...  # without credentials
    @property
    def durability(self) -> str: ...  # what a confirmed write survives, as text
    @property
    def keeps_versions(self) -> bool: ...
    @property
    def refusal_is_final(self) -> bool: ...  # False if a proxy may send a request twice
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
class Signalling(Protocol):
    """A driver that can wake callers in any process that wait for a change, without writing an object."""

    def signal(self, prefix: str) -> None: ...


@runtime_checkable
class WritesToOpen(Protocol):
    """A driver that writes something when it connects, or when it meets a damaged object."""

    async def connect_for_reading(self) -> None:
        """Connect without writing anything. Reads and listings do not write anything either from now on."""
        ...


@runtime_checkable
class Removing(Protocol):
    """A driver that can delete an object only if it still has a given tag."""

    async def remove(self, key: str, tag: str) -> bool:
        """Delete the object if it has this tag. Return False if it has changed or the store does not support this."""
        ...
