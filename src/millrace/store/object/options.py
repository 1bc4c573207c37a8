"""Options of an object store, and how they are read from environment variables.

An invalid value raises an error that names its variable. It is never replaced silently by the default.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from millrace.domain.errors import InvalidInput
from millrace.store.object.keys import Layout
from millrace.store.variables import ADDRESS_SETTINGS, OBJECT_SETTINGS, PREFIX


class ObjectOptions(msgspec.Struct, frozen=True):
    """Options of an object store. Durations are in milliseconds."""

    shard_digits: int = 1  # hex digits of the shard: 1 makes 16 of them
    inline_limit: int = 64 << 10  # the largest payload or result, in bytes, kept in the job's own object
    look_every: int = 1_000  # how often claims check for due group members and expired jobs
    listing_reuse: int = 250  # how long a listing of claimable jobs is reused
    feed_delay: int = 60_000  # how far readers of the feed stay behind the clock
    lock_patience: int = 2_000  # how long another process's unfinished transaction may block
    sweep_patience: int = 10_000  # the sweep skips objects younger than this: a write may be in progress
    shards: tuple[str, ...] | None = None  # claim only from these shards; None: all
    ready_page_size: int = 100  # page size of the ready index, once it is too long for one listing
    index_mode: Literal["index-only", "hybrid", "log-scan"] = "hybrid"  # how claims find jobs
    log_scan_page_size: int = 50  # jobs read per claim where the index is not enough
    log_scan_pace: int = 2_000  # pause after each request of such a read, in the mode hybrid
    max_clock_skew: int = 2_000  # clock difference above which a claim warns
    monitor: bool = True  # whether workers recover and repair in the background
    monitor_check_interval: int = 30_000
    monitor_worker_health_threshold: int = 60_000  # a worker silent for longer is reported as stale
    monitor_sweep_interval: int = 300_000  # between two sweeps; 0: none
    monitor_sweep_page_size: int = 1_000


def object_options(env: Mapping[str, str] | None = None, *, feed_delay: int | None = None) -> ObjectOptions:
    """Return the options from the environment. `feed_delay` is the default of that option for this kind of store."""
    env = os.environ if env is None else env
    given: dict[str, Any] = {} if feed_delay is None else {"feed_delay": feed_delay}
    for setting in OBJECT_SETTINGS:
        found = setting.found(env)
        if found is None:
            continue
        value = setting.read(*found)
        if setting.field:
            given[setting.field] = round(value * setting.scale) if setting.scale else value
    if "no_monitor" in given:
        given["monitor"] = not given.pop("no_monitor")
    options = ObjectOptions(**given)
    _check_shards(options)
    return options


def bucket_environment(env: Mapping[str, str] | None = None) -> Mapping[str, str]:
    """Return the environment variables for a bucket's address. MILLRACE_* variables replace the S3_* variables."""
    env = os.environ if env is None else env
    named = {
        setting.aliases[0]: env[setting.env] for setting in ADDRESS_SETTINGS if setting.aliases and env.get(setting.env)
    }
    return {**env, **named} if named else env


def _check_shards(options: ObjectOptions) -> None:
    known = Layout(options.shard_digits).shards
    strange = sorted(set(options.shards or ()) - set(known))
    if strange:
        raise InvalidInput(
            f"{PREFIX}SHARDS: there is no shard {strange[0]!r}; with {PREFIX}SHARD_DIGITS={options.shard_digits} "
            f"they are {known[0]} to {known[-1]}"
        )
