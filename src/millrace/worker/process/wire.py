"""The messages between a worker and a child, sent over a socket pair.

A frame is a msgpack message after four bytes with its length.

Messages contain only data, never code. A child receives the name of a task and looks it up among the tasks that it has
imported.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from millrace.app.handler.address import HandlerAddress, Program
from millrace.app.handler.job_log import LogLine
from millrace.app.handler.verdict import Abort
from millrace.domain.job import Job, Spec
from millrace.domain.outcome import Failure

_LENGTH = 4


class Boot(msgspec.Struct, frozen=True, tag=True):
    """The first message to a child: the worker's process id, and where to import the tasks from."""

    parent: int
    path: list[bytes]
    arguments: list[bytes]
    program: Program | None
    tasks: list[HandlerAddress]


class Work(msgspec.Struct, frozen=True, tag=True):
    """A message to the child: call a handler for one job, or for all jobs of a batch.

    `remaining` has, for each job, the seconds until its timeout, or None.
    """

    jobs: list[Job]
    remaining: list[float | None]
    log_level: int
    batch: bool = False
    keeps_log: bool = False  # whether the lines of `ctx.log` are sent for the logs of the jobs


class Halt(msgspec.Struct, frozen=True, tag=True):
    """A message to the child: stop the current call of the handler."""

    why: Abort


class Retire(msgspec.Struct, frozen=True, tag=True):
    """A message to the child: exit, because there is no more work."""


class ChildReady(msgspec.Struct, frozen=True, tag=True):
    """A message from the child: it has imported its tasks."""


class ChildBroken(msgspec.Struct, frozen=True, tag=True):
    """A message from the child: it could not import its tasks, and is about to exit."""

    error: Failure


class Progress(msgspec.Struct, frozen=True, tag=True):
    """A message from the child: progress of the job at `index` in `Work.jobs`."""

    index: int
    value: bytes


class ChildRecord(msgspec.Struct, frozen=True, tag=True):
    """A message from the child: one log record of `ctx.log`."""

    level: int
    text: str
    facts: dict[str, Any]


class ChildLine(msgspec.Struct, frozen=True, tag=True):
    """A message from the child: a line for the log of the job at `index` in `Work.jobs`."""

    index: int
    line: LogLine


BuryReason = Literal["payload_invalid", "result_invalid", "not_retried"]  # reasons to bury the job at once


class AttemptDone(msgspec.Struct, frozen=True):
    """How one attempt ended: a part of `CallEnded`."""

    how: Literal["returned", "raised", "retry", "snooze", "bury", "aborted"] | BuryReason
    result: bytes | None = None
    error: Failure | None = None
    delay: int | None = None
    children: list[Spec] = []  # msgspec copies the default
    progress: bytes | None = None


class CallEnded(msgspec.Struct, frozen=True, tag=True):
    """A message from the child: how the attempts ended, in the order of `Work.jobs`.

    `memory` is the peak memory of the child, in bytes. `retires` is set if the child can run no further attempts,
    because its lifespan has failed.
    """

    ends: list[AttemptDone]
    memory: int
    retires: bool = False


ToChild = Boot | Work | Halt | Retire
ToWorker = ChildReady | ChildBroken | Progress | ChildRecord | ChildLine | CallEnded

_encoder = msgspec.msgpack.Encoder()
_for_child = msgspec.msgpack.Decoder(ToChild)
_for_worker = msgspec.msgpack.Decoder(ToWorker)


def frame(message: ToChild | ToWorker) -> bytes:
    data = _encoder.encode(message)
    return len(data).to_bytes(_LENGTH, "big") + data


class Frames:
    """Decodes the messages of a child from received bytes, without blocking. Used in the worker."""

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
    """Wait for the next message of the worker and return it. Return None if the worker is gone. Used in the child."""
    header = _exactly(channel, _LENGTH)
    body = None if header is None else _exactly(channel, int.from_bytes(header, "big"))
    return None if body is None else _for_child.decode(body)


def _exactly(channel: socket.socket, count: int) -> bytes | None:
    data = bytearray()
    while len(data) < count:
        try:
            part = channel.recv(count - len(data))
        except ConnectionError:  # any other error does not mean that the worker is gone
            return None
        if not part:
            return None
        data += part
    return bytes(data)
