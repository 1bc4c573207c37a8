"""What can be set on an object store."""

from __future__ import annotations

from typing import Literal

import msgspec


class ObjectOptions(msgspec.Struct, frozen=True):
    """Durations in milliseconds."""

    shard_digits: int = 1  # hex digits of the shard: 1 makes 16 of them
    inline_limit: int = 64 << 10  # bytes of a payload or result that stay in the job's own object
    look_every: int = 1_000  # how often a claim looks for what has become due in groups, or has expired
    listing_reuse: int = 250  # how long one listing of what is claimable may serve
    feed_delay: int = 60_000  # how far a reader of the feed stays behind
    lock_patience: int = 2_000  # how long somebody's half-done write may stand in the way
    sweep_patience: int = 10_000  # what is younger than that may be somebody's work under way: the sweep leaves it
    shards: tuple[str, ...] | None = None  # claims take jobs of these shards only; None: of all (O-05)
    ready_page_size: int = 100  # entries of a page of the ready index, once it is too long for one listing
    index_mode: Literal["index-only", "hybrid", "log-scan"] = "hybrid"  # how claims find jobs (O-07)
    log_scan_page_size: int = 50  # jobs looked at per claim where the index is not enough
    log_scan_pace: int = 2_000  # pause for each request that such a look has cost, in the mode hybrid
    max_clock_skew: int = 2_000  # how far this machine's clock may be off before a claim warns
    monitor: bool = True  # whether a worker repairs and recovers besides its jobs
    monitor_check_interval: int = 30_000
    monitor_worker_health_threshold: int = 60_000  # silent for longer: reported as stale
    monitor_sweep_interval: int = 300_000  # between two sweeps; 0: none
    monitor_sweep_page_size: int = 1_000
