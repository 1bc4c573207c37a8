"""Ids for jobs whose caller names none, and tokens that name one enqueue.

Sorted ids (UUID version 7) keep inserts at one end of an index; random ones (version 4) spread over the shards
of a store that lists by prefix. A batch draws its chance once: 48 bits of each id are a counter from a random start.
"""

from __future__ import annotations

import secrets
import threading
import time
from typing import Literal

from millrace.store.forks import hold_over_forks

_VARIANTS = {digit: "89ab"[int(digit, 16) & 3] for digit in "0123456789abcdef"}
_lock = threading.Lock()
hold_over_forks(_lock)
_last = (0, 0)  # milliseconds and step of the newest draw


def new_ids(kind: Literal["sorted", "random"], count: int) -> list[str]:
    return sorted_ids(count) if kind == "sorted" else random_ids(count)


def sorted_ids(count: int) -> list[str]:
    """UUIDs of version 7, each greater than all that this process drew before."""
    milliseconds, step = _tick()
    time_text = f"{milliseconds:012x}"
    chance = secrets.randbits(61)
    variant = 0x8000 | chance >> 47
    start = chance & ((1 << 47) - 1)  # the upper half of the counter's 48 bits is room to count
    head = f"{time_text[:8]}-{time_text[8:]}-7{step:03x}-{variant:04x}-"
    return [f"{head}{number:012x}" for number in range(start, start + count)]


def random_ids(count: int) -> list[str]:
    """UUIDs of version 4, random from the first character."""
    chance = secrets.token_bytes(16 * count).hex()
    ids = []
    for at in range(0, 32 * count, 32):
        text = chance[at : at + 32]
        variant = _VARIANTS[text[16]]
        ids.append(f"{text[:8]}-{text[8:12]}-4{text[13:16]}-{variant}{text[17:20]}-{text[20:]}")
    return ids


def new_token() -> str:
    """For an enqueue under an id of the caller's; a generated id is as unique and serves as its own token."""
    return secrets.token_hex(12)


def _tick() -> tuple[int, int]:
    """A pair that only grows, also within a millisecond and when the clock is set back."""
    global _last  # noqa: PLW0603  # one line of ids per process is the point
    with _lock:
        milliseconds, step = time.time_ns() // 1_000_000, 0
        if milliseconds <= _last[0]:
            milliseconds, step = _last[0], _last[1] + 1
            if step > 0xFFF:
                milliseconds, step = milliseconds + 1, 0
        _last = (milliseconds, step)
        return _last
