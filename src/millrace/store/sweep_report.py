"""The result of a sweep, the share of a sweep that one process does, and how often workers sweep a store."""

from __future__ import annotations

import msgspec


class Swept(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result of a sweep: `looked_at` is the number of checked objects, the other numbers count repairs by kind.

    `more` means that the round is not finished.
    """

    looked_at: int = 0
    index_restored: int = 0  # missing index keys: no claim would have found these jobs
    index_removed: int = 0  # outdated index keys
    abandoned: int = 0  # undecided transactions that were aborted for their owners
    carried_through: int = 0  # objects of committed transactions that did not have their new value yet
    manifests_removed: int = 0
    dependents_updated: int = 0
    triggers_restored: int = 0
    events_restored: int = 0
    events_dropped: int = 0  # events past their retention that were deleted from records
    queues_restored: int = 0
    counters_corrected: int = 0
    keys_freed: int = 0  # unique keys that have expired or whose owner is deleted
    data_removed: int = 0
    stubs_removed: int = 0
    more: bool = False

    @property
    def repairs(self) -> dict[str, int]:
        """The number of repairs by kind, without kinds that have none."""
        return {name: number for name in _REPAIRS if (number := getattr(self, name))}

    def plus(self, other: Swept) -> Swept:
        """Return the sum of two results, with the `more` of `other`, which is the later one."""
        sums = {name: getattr(self, name) + getattr(other, name) for name in ("looked_at", *_REPAIRS)}
        return Swept(**sums, more=other.more)


_REPAIRS = tuple(name for name in Swept.__struct_fields__ if name not in ("looked_at", "more"))


class SweepShare(msgspec.Struct, frozen=True):
    """The part of a round that one sweeper does: all jobs in `shards`, and a part of the objects that jobs share.

    The shared objects are divided into `of` equal parts. This sweeper checks the part with this `number`, counted from
    0.
    """

    shards: tuple[str, ...]
    number: int = 0
    of: int = 1


class Monitoring(msgspec.Struct, frozen=True):
    """How workers monitor and sweep a store; times are in seconds. If `by_workers` is False, by default they do
    neither.
    """

    by_workers: bool = True
    check_interval: float = 30.0
    worker_health_threshold: float = 60.0
    sweep_interval: float = 300.0  # 0: no sweeps
