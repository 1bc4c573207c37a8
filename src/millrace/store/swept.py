"""What a sweep has put right, counted by kind, and how often a store wants to be swept."""

from __future__ import annotations

import msgspec


class Swept(msgspec.Struct, frozen=True, omit_defaults=True):
    """`looked_at` counts what was checked, the rest what was not as it should be. `more`: the round is not over."""

    looked_at: int = 0
    index_restored: int = 0  # keys that were missing: a job that nobody would have found
    index_removed: int = 0  # keys that said what was no longer so
    abandoned: int = 0  # undecided transactions that were given up for their owners
    carried_through: int = 0  # objects of decided transactions that had not been given their value
    manifests_removed: int = 0
    dependents_told: int = 0
    triggers_restored: int = 0
    events_restored: int = 0
    events_dropped: int = 0  # from the records, since they are past their retention
    queues_restored: int = 0
    counters_corrected: int = 0
    keys_freed: int = 0  # unique keys whose time or whose owner is gone
    data_removed: int = 0
    stubs_removed: int = 0
    more: bool = False

    @property
    def repairs(self) -> dict[str, int]:
        """What was done, by name; empty when all was well."""
        return {name: number for name in _REPAIRS if (number := getattr(self, name))}

    def plus(self, other: Swept) -> Swept:
        """Both together; whether there is more is for the later one to say."""
        sums = {name: getattr(self, name) + getattr(other, name) for name in ("looked_at", *_REPAIRS)}
        return Swept(**sums, more=other.more)


_REPAIRS = tuple(name for name in Swept.__struct_fields__ if name not in ("looked_at", "more"))


class SweepShare(msgspec.Struct, frozen=True):
    """What one of several sweepers looks at: the jobs of these shards, and every `of`-th of what jobs share."""

    shards: tuple[str, ...]
    number: int = 0
    of: int = 1


class Monitoring(msgspec.Struct, frozen=True):
    """What a store wishes of those who look after it, in seconds. Not `by_workers`: somebody else does."""

    by_workers: bool = True
    check_interval: float = 30.0
    worker_health_threshold: float = 60.0
    sweep_interval: float = 300.0  # 0: no sweeps
