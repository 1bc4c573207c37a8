"""Generated job ids, and tokens that identify an enqueue call.

Sorted ids (UUID version 7) keep inserts at one end of an index. Random ids (version 4) spread over the shards of a
store that lists by prefix. The sorted ids of one call share one random number: their last 48 bits are a counter that
starts at a random value.
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
_last = (0, 0)  # what `_tick` returned last


def new_ids(kind: Literal["sorted", "random"], count: int) -> list[str]:
    return sorted_ids(count) if kind == "sorted" else random_ids(count)


def sorted_ids(count: int) -> list[str]:
    """Return UUIDs of version 7 in ascending order. They are greater than all that this process generated before."""
    milliseconds, step = _tick()
    time_text = f"{milliseconds:012x}"
    chance = secrets.randbits(61)
    variant = 0x8000 | chance >> 47
    start = chance & ((1 << 47) - 1)  # 47 of the counter's 48 bits, so that it cannot overflow
    head = f"{time_text[:8]}-{time_text[8:]}-7{step:03x}-{variant:04x}-"
    return [f"{head}{number:012x}" for number in range(start, start + count)]


def random_ids(count: int) -> list[str]:
    """Return UUIDs of version 4, which are random from the first character."""
    chance = secrets.token_bytes(16 * count).hex()
    ids = []
    for at in range(0, 32 * count, 32):
        text = chance[at : at + 32]
        variant = _VARIANTS[text[16]]
        ids.append(f"{text[:8]}-{text[8:12]}-4{text[13:16]}-{variant}{text[17:20]}-{text[20:]}")
    return ids


def new_token() -> str:
    """Return a token that identifies one enqueue of a job whose id the caller has set.

    A generated id needs no token: it is unique, and serves as its own token.
    """
    return secrets.token_hex(12)


def _tick() -> tuple[int, int]:
    """Return the time in milliseconds and a counter within that millisecond.

    Each call returns a greater pair than the call before, even if the clock is set back.
    """
    global _last  # noqa: PLW0603  # ids ascend over the whole process
    with _lock:
        milliseconds, step = time.time_ns() // 1_000_000, 0
        if milliseconds <= _last[0]:
            milliseconds, step = _last[0], _last[1] + 1
            if step > 0xFFF:
                milliseconds, step = milliseconds + 1, 0
        _last = (milliseconds, step)
        return _last
