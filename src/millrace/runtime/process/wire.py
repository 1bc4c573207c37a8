"""What a worker and a child say to each other: msgpack frames over a socket pair, four bytes of length before each.

Data only. A child is told the name of a task and looks it up among those it imported; nothing that arrives is code.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from millrace.domain.job import Job, Spec
from millrace.domain.outcome import Failure
from millrace.runtime.hold import Abort
from millrace.runtime.process.address import Address, Program

_LENGTH = 4


class Boot(msgspec.Struct, frozen=True, tag=True):
    """The first word to a child: who its parent is and where its tasks are."""

    parent: int
    path: list[bytes]
    arguments: list[bytes]
    program: Program | None
    tasks: list[Address]


class Work(msgspec.Struct, frozen=True, tag=True):
    """One attempt, or those that one call of a batch handler makes. `remaining` is the seconds each has."""

    jobs: list[Job]
    remaining: list[float | None]
    log_level: int
    batch: bool = False


class Halt(msgspec.Struct, frozen=True, tag=True):
    """The attempt is to end now."""

    why: Abort


class Retire(msgspec.Struct, frozen=True, tag=True):
    """There is no more work for this child."""


class Ready(msgspec.Struct, frozen=True, tag=True):
    """It has imported everything."""


class Broken(msgspec.Struct, frozen=True, tag=True):
    """It could not import the tasks, and is about to exit."""

    error: Failure


class Progress(msgspec.Struct, frozen=True, tag=True):
    """`index` says of which job of the work."""

    index: int
    value: bytes


class Line(msgspec.Struct, frozen=True, tag=True):
    """One record of `ctx.log`."""

    level: int
    text: str
    facts: dict[str, Any]


class Done(msgspec.Struct, frozen=True):
    """How one attempt ended."""

    how: Literal["returned", "raised", "retry", "snooze", "bury", "unfit", "aborted"]
    result: bytes | None = None
    error: Failure | None = None
    delay: int | None = None
    children: list[Spec] = []  # msgspec copies it
    progress: bytes | None = None


class Ended(msgspec.Struct, frozen=True, tag=True):
    """How the attempts ended, in order. `memory` is the child's peak so far, in bytes."""

    ends: list[Done]
    memory: int


ToChild = Boot | Work | Halt | Retire
ToWorker = Ready | Broken | Progress | Line | Ended

_encoder = msgspec.msgpack.Encoder()
_for_child = msgspec.msgpack.Decoder(ToChild)
_for_worker = msgspec.msgpack.Decoder(ToWorker)


def frame(message: ToChild | ToWorker) -> bytes:
    data = _encoder.encode(message)
    return len(data).to_bytes(_LENGTH, "big") + data


class Frames:
    """Bytes as they come in, messages as they are complete: the worker's side, which must not block."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[ToWorker]:
        self._data += data
        while len(self._data) >= _LENGTH:
            end = _LENGTH + int.from_bytes(self._data[:_LENGTH], "big")
            if len(self._data) < end:
                return
            message = _for_worker.decode(bytes(self._data[_LENGTH:end]))
            del self._data[:end]
            yield message


def receive(channel: socket.socket) -> ToChild | None:
    """The next message for a child; None when the worker is gone. Blocks."""
    header = _exactly(channel, _LENGTH)
    body = None if header is None else _exactly(channel, int.from_bytes(header, "big"))
    return None if body is None else _for_child.decode(body)


def _exactly(channel: socket.socket, count: int) -> bytes | None:
    data = bytearray()
    while len(data) < count:
        try:
            part = channel.recv(count - len(data))
        except ConnectionError:  # any other error is not the worker's end
            return None
        if not part:
            return None
        data += part
    return bytes(data)
