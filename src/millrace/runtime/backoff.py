"""Backoff as people write it: durations in seconds or text, where the policy that travels has milliseconds."""

from __future__ import annotations

from millrace.domain.retry import DEFAULT_RETRY, RetryPolicy
from millrace.runtime.duration import Duration, milliseconds


def backoff(
    initial: Duration = DEFAULT_RETRY.initial / 1000,
    *,
    factor: float = DEFAULT_RETRY.factor,
    maximum: Duration = DEFAULT_RETRY.maximum / 1000,
    jitter: float = DEFAULT_RETRY.jitter,
) -> RetryPolicy:
    """Wait `initial` after the first failure, `factor` times as long after each further one, `maximum` at most.

    @app.task(retry=backoff("5s", maximum="10m"))
    """
    return RetryPolicy(milliseconds("initial", initial), factor, milliseconds("maximum", maximum), jitter)
