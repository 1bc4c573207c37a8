"""Lanes: which of a pool's ordered lines a job belongs to.

With a partition key (the job's group) the lane follows from a stable hash: the same in every process and release.
Without one, the store deals lanes out in turn, so that they fill evenly however many producers there are (BW-15).
"""

from __future__ import annotations

from millrace.domain.hashing import fnv1a
from millrace.domain.job import Job


def lane_of(partition_key: str, lanes: int) -> int:
    return fnv1a(partition_key) % lanes


def lane_again(job: Job, lanes: int | None) -> int | None:
    """The lane of a job that is brought back: the pool may have been given another number of lanes meanwhile."""
    if lanes is None or job.spec.hook:
        return None
    if job.spec.group is not None:
        return lane_of(job.spec.group, lanes)
    return (job.lane or 0) % lanes


def instance_id(pool: str, lane: int) -> str:
    """The name of one lane among all pools (W-01)."""
    return f"workerPool:{pool}:{lane}"
