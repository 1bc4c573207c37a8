"""The retry policy: how long to wait before the next attempt.

It travels with the job, so that whoever finds a lost job can decide for it without knowing its task.
"""

from __future__ import annotations

import math

import msgspec

from millrace.domain.errors import InvalidInput

_MAX_EXPONENT = 64  # beyond it every factor above 1 has long met its maximum; keeps float powers finite


class RetryPolicy(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Exponential backoff with jitter and a hard cap, or a fixed list of delays. Milliseconds."""

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
        for name in ("initial", "maximum"):  # a store that wrote a fraction could not read its job again
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
        """Milliseconds until the next attempt after `failures` earlier ones; `chance` in [0, 1).

        The spread is ± jitter, but only downwards once the maximum is reached: the cap is hard and
        retries that met it still do not come back in step (BW-12, BL-07).
        """
        if self.delays is not None:
            base = float(self.delays[min(failures, len(self.delays) - 1)])
            at_cap = False
        else:
            base = min(self._grown(failures), float(self.maximum))
            at_cap = base >= self.maximum
        spread = (chance - 1.0) if at_cap else (2.0 * chance - 1.0)
        delay = max(0, round(base * (1.0 + self.jitter * spread)))
        return delay if self.delays is not None else min(delay, self.maximum)  # just below the cap it spreads over it

    def _grown(self, failures: int) -> float:
        try:
            return self.initial * self.factor ** min(failures, _MAX_EXPONENT)
        except OverflowError:  # a factor of a million and more: beyond any maximum, unless there is nothing to grow
            return math.inf if self.initial else 0.0


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and value >= 0


DEFAULT_RETRY = RetryPolicy()
