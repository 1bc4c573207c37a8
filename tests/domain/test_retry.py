"""The retry policy: growth, jitter, a hard cap, lists, and what is refused (part 2: backoff; BW-12)."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.domain.errors import InvalidInput
from millrace.domain.retry import DEFAULT_RETRY, RetryPolicy

CHANCE = st.floats(0, 1, exclude_max=True)


def test_the_default_is_one_second_doubling_up_to_a_minute() -> None:
    assert RetryPolicy() == DEFAULT_RETRY == RetryPolicy(1_000, 2.0, 60_000, 0.25)
    middle = [DEFAULT_RETRY.delay(failures, 0.5) for failures in range(6)]
    assert middle == [1_000, 2_000, 4_000, 8_000, 16_000, 32_000]


@given(failures=st.integers(0, 5), chance=CHANCE)
def test_below_the_cap_the_spread_is_a_quarter_either_way(failures: int, chance: float) -> None:
    base = 1_000 * 2**failures

    assert base * 0.75 <= DEFAULT_RETRY.delay(failures, chance) <= base * 1.25


@given(failures=st.integers(6, 10**6), chance=CHANCE)
def test_the_cap_is_hard_and_retries_still_spread(failures: int, chance: float) -> None:
    assert 45_000 <= DEFAULT_RETRY.delay(failures, chance) <= 60_000


def test_the_spread_reaches_both_ends() -> None:
    assert [DEFAULT_RETRY.delay(1, chance) for chance in (0.0, 1.0)] == [1_500, 2_500]
    assert [DEFAULT_RETRY.delay(9, chance) for chance in (0.0, 0.5, 1.0)] == [45_000, 52_500, 60_000]


def test_a_delay_that_just_meets_the_cap_is_at_the_cap() -> None:
    policy = RetryPolicy(initial=1_000, maximum=4_000, jitter=0.5)

    assert [policy.delay(failures, 1.0) for failures in (1, 2, 3)] == [3_000, 4_000, 4_000]


def test_without_jitter_the_delay_is_exact() -> None:
    policy = RetryPolicy(initial=10, factor=3, maximum=1_000, jitter=0)

    assert [policy.delay(n, 0.123) for n in range(6)] == [10, 30, 90, 270, 810, 1_000]


def test_a_list_is_followed_and_its_last_delay_repeated() -> None:
    policy = RetryPolicy(delays=(100, 5, 70_000), jitter=0)

    assert [policy.delay(n, 0.5) for n in range(5)] == [100, 5, 70_000, 70_000, 70_000]


def test_a_list_spreads_both_ways_as_it_has_no_cap() -> None:
    policy = RetryPolicy(delays=(1_000,), maximum=10)

    assert [policy.delay(0, chance) for chance in (0.0, 1.0)] == [750, 1_250]


@given(
    initial=st.integers(0, 10**15),
    factor=st.floats(0, 1e300),
    maximum=st.integers(0, 10**15),
    failures=st.integers(0, 10**9),
    chance=CHANCE,
)
def test_whatever_the_numbers_a_delay_is_finite_and_within_its_cap(
    initial: int, factor: float, maximum: int, failures: int, chance: float
) -> None:
    """Exponent clamped; a large factor overflows nothing."""
    delay = RetryPolicy(initial, factor, maximum).delay(failures, chance)

    assert isinstance(delay, int)
    assert 0 <= delay <= maximum + 1


def test_a_giant_factor_meets_the_cap_and_nothing_stays_nothing() -> None:
    assert RetryPolicy(initial=1, factor=1e200, maximum=50, jitter=0).delay(9, 0.5) == 50
    assert RetryPolicy(initial=0, factor=1e200, maximum=50, jitter=0).delay(9, 0.5) == 0


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, -1])
@pytest.mark.parametrize("name", ["initial", "factor", "maximum", "jitter"])
def test_numbers_that_are_none_are_refused(name: str, bad: float) -> None:
    with pytest.raises(InvalidInput, match=f"retry {name} must be a finite number"):
        RetryPolicy(**{name: bad})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["initial", "maximum"])
def test_a_fraction_of_a_millisecond_is_refused_before_a_store_has_to_read_it_back(name: str) -> None:
    with pytest.raises(InvalidInput, match=f"retry {name} is in whole milliseconds, not 0.01; write retry=backoff"):
        RetryPolicy(**{name: 0.01})  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=f"retry {name} must be a finite number"):
        RetryPolicy(**{name: "1s"})  # type: ignore[arg-type]


def test_a_jitter_above_one_is_refused() -> None:
    assert RetryPolicy(jitter=1.0).delay(0, 0.0) == 0
    with pytest.raises(InvalidInput, match="share between 0 and 1"):
        RetryPolicy(jitter=1.01)


@pytest.mark.parametrize("delays", [(), (5, -1), (math.nan,), (1, math.inf), (0.5,), ("1s",)])
def test_a_bad_list_is_refused(delays: tuple[int, ...]) -> None:
    with pytest.raises(InvalidInput, match="retry delays"):
        RetryPolicy(delays=delays)


def test_a_delay_of_nothing_is_allowed() -> None:
    assert RetryPolicy(delays=(0,)).delay(0, 0.5) == RetryPolicy(initial=0).delay(5, 0.9) == 0
