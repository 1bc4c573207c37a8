"""Holds: the leases that one worker has, and what it knows of each by its own monotonic clock.

A store counts a lease from when it handled the call, a worker from when it sent it: the worker always believes
its leases to end a little earlier than they do. That is the safe side (BL-10). Worker wall clocks decide nothing.
"""

from __future__ import annotations

from enum import StrEnum

from millrace.domain.job import Job

MARGIN = 0.1  # the share of a lease that is left when a worker which cannot extend it aborts the run


class Abort(StrEnum):
    """Why a run was told to end before it was done."""

    TIMEOUT = "it ran longer than its timeout"
    CANCEL = "somebody cancelled the job"
    SHUTDOWN = "the worker is shutting down"
    SILENT = "the store has not answered for almost a whole lease"
    LOST = "its lease was taken over"


class Hold:
    """One lease; from the claim until its settle was answered. Read by the heartbeat's thread too."""

    __slots__ = (
        "completing",
        "ended",
        "extend_until",
        "given_up",
        "job",
        "lease",
        "length",
        "progress",
        "until",
        "why",
    )

    def __init__(self, job: Job, length: float, since: float, extend_until: float) -> None:
        self.job = job
        self.lease = job.lease
        self.length = length  # seconds
        self.until = since + length  # when, by our clock, the store may give it to somebody else
        self.extend_until = extend_until  # the heartbeat lets go of it from here on
        self.progress: bytes | None = None
        self.why: Abort | None = None
        self.ended = True  # nothing runs under it; a run says otherwise
        self.given_up = False  # the heartbeat has told its run to end
        self.completing = False  # its handler has completed the job in a transaction of its own

    @property
    def abort_at(self) -> float:
        return self.until - self.length * MARGIN

    def signal(self, why: Abort) -> None:
        """Tell whatever runs under this hold to end, from any thread, without touching its state."""


Holds = dict[str, Hold]  # by lease id
