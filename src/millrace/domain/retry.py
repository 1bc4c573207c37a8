"""The retry policy: how long to wait before the next attempt.

The policy is stored with the job, so that a worker that reclaims the job can apply it even if it lacks the task.
"""

from __future__ import annotations

import math

import msgspec

from millrace.domain.errors import InvalidInput

_MAX_EXPONENT = 64  # keeps float powers finite; any usual factor has reached its maximum by then


class RetryPolicy(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Exponential backoff with jitter and a maximum, or a fixed list of delays. All times are in milliseconds."""

    initial: int = 1_000
    factor: float = 2.0
    maximum: int = 60_000
    jitter: float = 0.25
    delays: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        numbers: dict[str, object] = {
            "initial": self.initial,
            "factor": self.factor,
            "maximum": self.maximum,
            "jitter": self.jitter,
        }
        for name, value in numbers.items():
            if not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
                raise InvalidInput(f"retry {name} must be a finite number of at least 0, not {value!r}")
        for name in ("initial", "maximum"):  # a stored fraction could not be decoded again
            if not isinstance(numbers[name], int):
                raise InvalidInput(
                    f"retry {name} is in whole milliseconds, not {numbers[name]!r}; "
                    'write retry=backoff("1.5s", maximum="1m") for seconds and text'
                )
        if self.jitter > 1:
            raise InvalidInput(f"retry jitter is a share between 0 and 1, not {self.jitter!r}")
        if self.delays is not None and not (self.delays and all(map(_is_whole, self.delays))):
            raise InvalidInput("retry delays must be a non-empty list of whole milliseconds of at least 0")

    def delay(self, failures: int, chance: float) -> int:
        """Return the delay before the next attempt, in milliseconds.

        `failures` is the number of earlier failures, and `chance` a random number in [0, 1). The delay varies by
        ± jitter. At the maximum it varies only downwards, so that it never exceeds the maximum.
        """
        if self.delays is not None:
            base = float(self.delays[min(failures, len(self.delays) - 1)])
            at_cap = False
        else:
            base = min(self._grown(failures), float(self.maximum))
            at_cap = base >= self.maximum
        spread = (chance - 1.0) if at_cap else (2.0 * chance - 1.0)
        delay = max(0, round(base * (1.0 + self.jitter * spread)))
        return delay if self.delays is not None else min(delay, self.maximum)  # jitter may have exceeded the maximum

    def _grown(self, failures: int) -> float:
        try:
            return self.initial * self.factor ** min(failures, _MAX_EXPONENT)
        except OverflowError:  # a factor of a million or more: above any maximum, unless `initial` is 0
            return math.inf if self.initial else 0.0


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and value >= 0


DEFAULT_RETRY = RetryPolicy()
