"""Lanes: which lane of a pool a job belongs to.

With a partition key (the job's group), the lane is a hash of the key, the same in every process and release. Without
a partition key, the store assigns lanes in turn, so that all lanes get equally many jobs from any number of producers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from millrace.domain.hashing import fnv1a
from millrace.domain.job import Job, Spec, group_line, lane_line

if TYPE_CHECKING:
    from millrace.domain.tables import QueueRow


def lane_of(partition_key: str, lanes: int) -> int:
    return fnv1a(partition_key) % lanes


def lane_again(job: Job, lanes: int | None) -> int | None:
    """Return the lane of a replayed job in a queue that now has `lanes` lanes.

    Return None if the queue has no lanes or the job is a hook job.
    """
    if lanes is None or job.spec.hook:
        return None
    if job.spec.group is not None:
        return lane_of(job.spec.group, lanes)
    return (job.lane or 0) % lanes


def possible_lines(specs: Iterable[Spec], row: QueueRow) -> set[str]:
    """Return the names of the lines that new jobs of one queue may belong to.

    With `max_depth`, a job without a partition key may be put into any lane, because the next lanes may be full.
    """
    lanes = row.settings.lanes
    groups = [spec.group for spec in specs if not spec.hook]
    if lanes is None:
        return {group_line(group) for group in groups if group is not None}
    without_key = groups.count(None)
    turns = lanes if without_key and row.settings.max_depth is not None else min(lanes, without_key)
    return {
        *(lane_line(lane_of(group, lanes)) for group in groups if group is not None),
        *(lane_line((row.next_lane + turn) % lanes) for turn in range(turns)),
    }


def instance_id(pool: str, lane: int) -> str:
    """Return a name for one lane that is unique over all pools."""
    return f"workerPool:{pool}:{lane}"
