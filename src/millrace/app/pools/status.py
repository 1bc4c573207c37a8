"""The status of a pool and its lanes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from millrace.domain.request import LaneStatus
from millrace.domain.rules.lanes import instance_id

Activity = Literal["paused", "processing", "idle"]


class LaneState(msgspec.Struct, frozen=True):
    """The status of one lane. `idle` means that no job is running, although jobs may be waiting."""

    pool: str
    lane: int
    state: Activity
    waiting: int
    running: int
    processed: int  # jobs ever completed, without dead ones
    dead: int
    current: int | None  # seq of the running job
    retrying: int | None  # seq of the job in backoff that holds the lane

    @property
    def instance(self) -> str:
        """The pool and the lane in one name, such as `workerPool:orders:3`."""
        return instance_id(self.pool, self.lane)

    @property
    def pending(self) -> int:
        """Number of jobs that are waiting or running."""
        return self.waiting + self.running


class PoolStatus(msgspec.Struct, frozen=True):
    pool: str
    paused: bool  # the whole pool; for a single lane see its own field
    lanes: tuple[LaneState, ...]

    @property
    def state(self) -> Activity:
        """What the pool does: paused, processing or idle."""
        if self.paused:
            return "paused"
        return "processing" if self.running else "idle"

    @property
    def waiting(self) -> int:
        """Number of waiting jobs, over all lanes."""
        return sum(lane.waiting for lane in self.lanes)

    @property
    def running(self) -> int:
        """Number of running jobs, over all lanes."""
        return sum(lane.running for lane in self.lanes)

    @property
    def pending(self) -> int:
        """Number of jobs that have not finished."""
        return self.waiting + self.running

    @property
    def processed(self) -> int:
        """Number of jobs that have ever completed."""
        return sum(lane.processed for lane in self.lanes)

    @property
    def dead(self) -> int:
        """Number of dead jobs."""
        return sum(lane.dead for lane in self.lanes)


def pool_status(pool: str, paused: bool, lanes: Sequence[LaneStatus]) -> PoolStatus:
    return PoolStatus(pool, paused, tuple(_lane(pool, paused, one) for one in lanes))


def _lane(pool: str, paused: bool, one: LaneStatus) -> LaneState:
    state: Activity = "paused" if paused or one.paused else "processing" if one.running else "idle"
    current, retrying = (one.holder, None) if one.running else (None, one.holder)
    return LaneState(pool, one.lane, state, one.waiting, one.running, one.processed, one.died, current, retrying)
