"""The settings of object stores: their names, parsers and environment variables.

They are not defined in `object/`, because `millrace config` shows them without importing that package. Every setting
has a `MILLRACE_*` variable. For existing deployments, some settings can also be set by `QO_*` and `S3_*` variables.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from millrace.domain.errors import InvalidInput

PREFIX = "MILLRACE_"
Read = Callable[[str, object], Any]
MOST_DIGITS = 3  # 4,096 shards; each needs its own listing once there are many jobs
MAX_PAGE = 1_000
DAY = 86_400_000
INDEX_MODES = ("index-only", "hybrid", "log-scan")
_UNITS = {"": 1_000, "ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": DAY}
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)\s*(ms|s|m|h|d|)")
_SHARDS = re.compile(r"([0-9a-f]+)(?:-([0-9a-f]+))?")


class ObjectSetting(msgspec.Struct, frozen=True):
    """One setting, in the unit that users write.

    `field` is the name of the option that the setting sets. `scale` is the factor that converts the value to the unit
    of that option.
    """

    name: str
    default: Any
    help: str
    read: Read
    aliases: tuple[str, ...] = ()
    field: str = ""  # the field of ObjectOptions; empty for parts of the bucket's address
    scale: int = 0  # factor to milliseconds

    @property
    def env(self) -> str:
        return PREFIX + self.name.upper()

    def found(self, env: Mapping[str, str]) -> tuple[str, str] | None:
        """Return the name and the text of the variable that sets this setting; None if no variable does.

        The MILLRACE_* variable takes precedence over its aliases. Empty variables are ignored.
        """
        return next(((name, env[name]) for name in (self.env, *self.aliases) if env.get(name)), None)


def shards_of(where: str, value: object) -> tuple[str, ...]:
    """Parse a list of shards such as `0,1,a` or `0-7`. Return the shards sorted and without duplicates."""
    parts = value.split(",") if isinstance(value, str) else value
    wrong = InvalidInput(f"{where} takes shards such as 0,1,2 or 0-7, in lower-case hex digits; not {value!r}")
    if not isinstance(parts, list | tuple) or not parts:
        raise wrong
    found: set[str] = set()
    for part in parts:
        match = _SHARDS.fullmatch(str(part).strip())
        if match is None:
            raise wrong
        first, last = match[1], match[2] or match[1]
        if len(first) != len(last) or len(first) > MOST_DIGITS or int(first, 16) > int(last, 16):
            raise wrong
        found.update(f"{number:0{len(first)}x}" for number in range(int(first, 16), int(last, 16) + 1))
    return tuple(sorted(found))


def shards_text(shards: Sequence[str]) -> str:
    """Return the shards in the format that `shards_of` parses, for example `0-7,a`."""
    parts: list[list[str]] = []
    for shard in sorted(shards, key=lambda one: int(one, 16)):
        if parts and int(shard, 16) == int(parts[-1][-1], 16) + 1:
            parts[-1].append(shard)
        else:
            parts.append([shard])
    return ",".join(part[0] if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)


# how each is read


def _whole(least: int, most: int) -> Read:
    def read(where: str, value: object) -> int:
        text = str(value).strip().replace("_", "")
        if isinstance(value, bool) or not re.fullmatch(r"\d{1,12}", text) or not least <= int(text) <= most:
            raise InvalidInput(f"{where} must be a whole number from {least:,} to {most:,}, not {value!r}")
        return int(text)

    return read


def _seconds(least: int) -> Read:
    def read(where: str, value: object) -> float:
        match = _DURATION.fullmatch(str(value).strip().lower())
        amount = -1.0 if match is None or isinstance(value, bool) else float(match[1]) * _UNITS[match[2]]
        if not (least <= amount <= DAY or amount == 0 == least):
            bounds = "0 (never), or " if not least else ""
            raise InvalidInput(
                f"{where} must be {bounds}{max(least, 1) / 1000:g} seconds to a day, such as 30 or 5m; not {value!r}"
            )
        return amount / 1_000

    return read


def _yes(where: str, value: object) -> bool:
    word = str(value).strip().lower()
    if word not in ("1", "true", "yes", "on", "0", "false", "no", "off"):
        raise InvalidInput(f"{where} must be 1 or 0, yes or no, true or false; not {value!r}")
    return word in ("1", "true", "yes", "on")


def _mode(where: str, value: object) -> str:
    word = str(value).strip().lower()
    if word not in INDEX_MODES:
        raise InvalidInput(f"{where} must be one of {', '.join(INDEX_MODES)}; not {value!r}")
    return word


def _words(where: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise InvalidInput(f"{where} must be text, not {value!r}")
    return value.strip()


ADDRESS_SETTINGS = (
    ObjectSetting(
        "s3_endpoint",
        None,
        "server of s3:// stores that is not AWS, e.g. http://127.0.0.1:9000",
        _words,
        ("S3_ENDPOINT", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
    ),
    ObjectSetting(
        "s3_bucket",
        None,
        "bucket of s3:///prefix; alone, without a URL, it is the store",
        _words,
        ("S3_BUCKET",),
    ),
    ObjectSetting(
        "s3_region",
        None,
        "region of the bucket; us-east-1 if nothing says otherwise",
        _words,
        ("S3_REGION", "AWS_REGION", "AWS_DEFAULT_REGION"),
    ),
    ObjectSetting(
        "allow_no_versioning",
        False,
        "use a bucket that keeps no versions: no history beyond a job's own record",
        _yes,
        ("QO_ALLOW_NO_VERSIONING",),
    ),
)

_TUNING = (
    ObjectSetting(
        "index_mode",
        "hybrid",
        f"how claims find jobs: {', '.join(INDEX_MODES)}",
        _mode,
        ("QO_INDEX_MODE",),
        "index_mode",
    ),
    ObjectSetting(
        "ready_page_size",
        100,
        "entries of a page of the ready index, once it is too long for one listing",
        _whole(1, MAX_PAGE),
        ("QO_READY_PAGE_SIZE",),
        "ready_page_size",
    ),
    ObjectSetting(
        "log_scan_page_size",
        50,
        "job objects that one claim looks through where the index is not enough",
        _whole(1, MAX_PAGE),
        ("QO_LOG_SCAN_PAGE_SIZE",),
        "log_scan_page_size",
    ),
    ObjectSetting(
        "shards", None, "shards whose jobs a worker claims, e.g. 0,1,2 or 0-7; by default all", shards_of, (), "shards"
    ),
    ObjectSetting(
        "shard_digits",
        1,
        "hex digits of a shard, fixed when a store is made: 1 makes 16",
        _whole(0, MOST_DIGITS),
        (),
        "shard_digits",
    ),
    ObjectSetting(
        "inline_limit",
        64 << 10,
        "bytes of a payload or result that stay in the job's own object",
        _whole(0, 16 << 20),
        (),
        "inline_limit",
    ),
    ObjectSetting(
        "feed_delay_ms",
        None,
        "how far a reader of events stays behind: 60,000, and 2,000 in a directory",
        _whole(0, DAY),
        (),
        "feed_delay",
    ),
    ObjectSetting(
        "lock_patience_ms",
        2_000,
        "how long to wait for another client's unfinished write",
        _whole(1, 600_000),
        (),
        "lock_patience",
    ),
    ObjectSetting(
        "max_clock_skew_ms",
        2_000,
        "how far this machine's clock may be off before a worker warns",
        _whole(1, DAY),
        ("QO_MAX_CLOCK_SKEW_MS",),
        "max_clock_skew",
    ),
)

_MONITOR = (
    ObjectSetting(
        "no_monitor",
        False,
        "leave recovery and repair to others than this worker",
        _yes,
        ("QO_NO_MONITOR",),
        "no_monitor",
    ),
    ObjectSetting(
        "monitor_check_interval",
        30.0,
        "between two looks for expired leases and silent workers",
        _seconds(100),
        ("QO_MONITOR_CHECK_INTERVAL",),
        "monitor_check_interval",
        1_000,
    ),
    ObjectSetting(
        "monitor_worker_health_threshold",
        60.0,
        "a worker silent for longer is reported as stale",
        _seconds(100),
        ("QO_MONITOR_WORKER_HEALTH_THRESHOLD",),
        "monitor_worker_health_threshold",
        1_000,
    ),
    ObjectSetting(
        "monitor_sweep_interval",
        300.0,
        "between two sweeps for what a crash left half done; 0: none",
        _seconds(0),
        ("QO_MONITOR_SWEEP_INTERVAL",),
        "monitor_sweep_interval",
        1_000,
    ),
    ObjectSetting(
        "monitor_sweep_page_size",
        1_000,
        "objects that a sweep looks at in one step",
        _whole(1, MAX_PAGE),
        ("QO_MONITOR_SWEEP_PAGE_SIZE",),
        "monitor_sweep_page_size",
    ),
)

OBJECT_SETTINGS = (*ADDRESS_SETTINGS, *_TUNING, *_MONITOR)
