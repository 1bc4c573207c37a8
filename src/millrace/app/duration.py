"""Durations as users write them: seconds, a timedelta, or text such as "1h30m".

This module converts them; all other code uses integer milliseconds.
"""

from __future__ import annotations

import math
import re
from datetime import timedelta

from millrace.domain.errors import InvalidInput
from millrace.domain.rules.check import MAX_DURATION

Duration = int | float | timedelta | str

_UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)")
_WHOLE = re.compile(rf"(?:{_PART.pattern}\s*)+")
_HOW = 'Use seconds (90, 0.25), a timedelta, or text such as "10m", "1h30m" or "250ms".'


def milliseconds(what: str, value: object) -> int:
    """Return a duration in milliseconds. A duration above 0 becomes at least 1 ms.

    Raises InvalidInput if `value` is not a duration. `what` is the name of the value in the message.
    """
    amount = _amount(what, value)
    if math.inf > amount > MAX_DURATION:
        raise InvalidInput(f"{what} of {value!r} is more than a century; is it in the right unit? {_HOW}")
    if not 0 <= amount < math.inf:  # also false for NaN
        raise InvalidInput(f"{what} must be a finite duration of at least 0, not {value!r}. {_HOW}")
    return max(1, round(amount)) if amount else 0


def optional_milliseconds(what: str, value: object) -> int | None:
    return None if value is None else milliseconds(what, value)


def _amount(what: str, value: object) -> float:
    match value:
        case bool():
            pass
        case int() | float():
            return value * 1_000
        case timedelta():
            return value / timedelta(milliseconds=1)
        case str():
            text = value.strip().lower()
            if _WHOLE.fullmatch(text):
                return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))
    raise InvalidInput(f"{what} is not a duration: {value!r}. {_HOW}")
