"""Token buckets, and the allowance: how many jobs a claim may take, as one number.

Eligibility is a fact, not a search. Pause, `max_running` and the bucket are turned into a number before
a claim looks at any job, so a token is spent only for a delivered job and no slot leaks when nothing is
due (BE-01, BE-02).
"""

from __future__ import annotations

import math

import msgspec

from millrace.domain.settings import Limits, QueueSettings

UNLIMITED = 1 << 60


class Bucket(msgspec.Struct, gc=False):
    """Tokens at an instant of the store's clock."""

    tokens: float
    at: int


def capacity(limits: Limits) -> int:
    return limits.burst if limits.burst is not None else max(1, math.ceil(limits.rate or 0))


def refill(bucket: Bucket | None, limits: Limits, now: int) -> Bucket:
    """The bucket as it is now. A clock that jumps back adds nothing; forward, at most one full bucket (BE-11)."""
    size = capacity(limits)
    if bucket is None:
        return Bucket(float(size), now)
    elapsed = max(0, now - bucket.at)
    return Bucket(min(float(size), bucket.tokens + elapsed * (limits.rate or 0.0) / 1000.0), now)


def allowance(limits: Limits, running: int, bucket: Bucket | None, now: int) -> int:
    """How many jobs these limits let through now."""
    allowed = UNLIMITED
    if isinstance(limits, QueueSettings) and limits.paused:
        return 0
    if limits.max_running is not None:
        allowed = max(0, limits.max_running - running)
    if limits.rate is not None:
        allowed = min(allowed, math.floor(refill(bucket, limits, now).tokens + 1e-9))
    return allowed


def spend(bucket: Bucket | None, limits: Limits, taken: int, now: int) -> Bucket | None:
    """The bucket after `taken` jobs were delivered; None when there is no rate."""
    if limits.rate is None:
        return None
    filled = refill(bucket, limits, now)
    return Bucket(max(0.0, filled.tokens - taken), now)


def next_token(limits: Limits, bucket: Bucket | None, now: int) -> int:
    """The instant at which the next whole token is there."""
    if limits.rate is None:
        return now
    missing = 1.0 - refill(bucket, limits, now).tokens
    return now if missing <= 1e-9 else now + math.ceil(missing * 1000.0 / limits.rate)
