"""Token buckets and allowances: how many jobs a claim may take (part 2: limits; BE-01, BE-02, BE-11)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.domain.rules.limits import UNLIMITED, Bucket, allowance, capacity, is_ahead, next_token, refill, spend
from millrace.domain.settings import Limits, QueueSettings

NOW = 1_000_000


@pytest.mark.parametrize(
    ("limits", "size"),
    [
        (Limits(rate=5), 5),
        (Limits(rate=2.5), 3),
        (Limits(rate=0.1), 1),
        (Limits(rate=5, burst=1), 1),
        (Limits(rate=1, burst=50), 50),
        (Limits(), 1),
    ],
)
def test_a_bucket_holds_a_second_of_tokens_unless_told_otherwise(limits: Limits, size: int) -> None:
    assert capacity(limits) == size


def test_a_bucket_begins_full() -> None:
    assert refill(None, Limits(rate=5), NOW) == Bucket(5.0, NOW)


def test_a_bucket_refills_by_elapsed_time() -> None:
    assert refill(Bucket(0.0, NOW), Limits(rate=5), NOW + 300) == Bucket(1.5, NOW + 300)


def test_a_clock_that_jumps_forward_gives_one_bucket_at_most() -> None:
    assert refill(Bucket(1.0, NOW), Limits(rate=5), NOW + 10**12).tokens == 5.0


def test_a_clock_that_jumps_back_gives_nothing() -> None:
    assert refill(Bucket(1.0, NOW), Limits(rate=5), NOW - 10**6) == Bucket(1.0, NOW - 10**6)


def test_a_bucket_is_ahead_of_a_clock_that_was_set_back_behind_it() -> None:
    assert [is_ahead(Bucket(1.0, NOW), now) for now in (NOW - 1, NOW, NOW + 1)] == [True, False, False]
    assert not is_ahead(None, NOW)


def test_a_bucket_that_is_written_again_counts_from_a_clock_that_was_set_back() -> None:
    limits = Limits(rate=5)
    back = NOW - 3_600_000

    written = spend(Bucket(0.0, NOW), limits, 0, back)

    assert written == Bucket(0.0, back)
    assert allowance(limits, 0, written, back + 200) == 1


def test_without_a_rate_a_bucket_does_not_grow() -> None:
    assert refill(Bucket(0.5, NOW), Limits(), NOW + 10**6).tokens == 0.5


def test_without_limits_everything_may_run() -> None:
    assert allowance(Limits(), 10**9, None, NOW) == allowance(QueueSettings(), 10**9, None, NOW) == UNLIMITED


def test_a_paused_queue_lets_nothing_through() -> None:
    assert allowance(QueueSettings(paused=True, max_running=5, rate=5), 0, None, NOW) == 0


@pytest.mark.parametrize(("running", "allowed"), [(0, 3), (2, 1), (3, 0), (9, 0)])
def test_max_running_leaves_what_does_not_run_yet(running: int, allowed: int) -> None:
    assert allowance(Limits(max_running=3), running, None, NOW) == allowed


def test_only_whole_tokens_count() -> None:
    limits = Limits(rate=5)

    assert [allowance(limits, 0, Bucket(tokens, NOW), NOW) for tokens in (0.0, 0.99, 1.0, 2.7)] == [0, 0, 1, 2]
    assert allowance(limits, 0, Bucket(0.0, NOW), NOW + 1_000) == 5
    assert allowance(limits, 0, Bucket(1 - 1e-12, NOW), NOW) == 1  # rounding of floats costs no token


def test_the_smaller_of_both_limits_holds() -> None:
    assert allowance(Limits(max_running=2, rate=5), 0, None, NOW) == 2
    assert allowance(Limits(max_running=9, rate=5), 0, None, NOW) == 5


def test_tokens_are_spent_for_what_was_delivered() -> None:
    assert spend(Bucket(2.0, NOW), Limits(rate=5), 1, NOW + 200) == Bucket(2.0, NOW + 200)
    assert spend(None, Limits(rate=5), 5, NOW) == Bucket(0.0, NOW)
    assert spend(Bucket(1.0, NOW), Limits(), 1, NOW) is None


def test_tokens_are_never_negative() -> None:
    assert spend(Bucket(0.5, NOW), Limits(rate=5), 3, NOW) == Bucket(0.0, NOW)


def test_the_next_token_is_there_when_a_claim_would_find_it() -> None:
    assert next_token(Limits(), None, NOW) == NOW
    assert next_token(Limits(rate=5), Bucket(1.0, NOW), NOW) == NOW
    assert next_token(Limits(rate=5), Bucket(0.0, NOW), NOW) == NOW + 200
    assert next_token(Limits(rate=0.1), Bucket(0.5, NOW), NOW) == NOW + 5_000
    assert next_token(Limits(rate=3), Bucket(0.0, NOW), NOW) == NOW + 334


@given(
    rate=st.floats(0.01, 1_000),
    burst=st.none() | st.integers(1, 100),
    steps=st.lists(st.tuples(st.integers(-10_000, 10_000), st.integers(0, 50)), max_size=50),
)
def test_over_any_stretch_no_more_is_given_than_rate_and_burst_allow(
    rate: float, burst: int | None, steps: list[tuple[int, int]]
) -> None:
    """I12; every jump back may be made up for once, by at most what it lost."""
    limits = Limits(rate=rate, burst=burst)
    bucket: Bucket | None = None
    now, given_out, forward = NOW, 0, 0
    for move, wanted in steps:
        now += move
        forward += max(0, move)
        taken = min(wanted, allowance(limits, 0, bucket, now))
        given_out += taken
        if taken:
            bucket = spend(bucket, limits, taken, now)
            assert bucket is not None and bucket.tokens >= 0

    assert given_out <= capacity(limits) + forward * rate / 1000 + 1e-6 * len(steps)


@given(rate=st.floats(0.01, 1_000), tokens=st.floats(0, 1))
def test_at_the_next_token_a_job_may_run_and_not_before(rate: float, tokens: float) -> None:
    limits, bucket = Limits(rate=rate), Bucket(tokens, NOW)
    at = next_token(limits, bucket, NOW)

    assert allowance(limits, 0, bucket, at + 1) >= 1
    if at > NOW + 1:
        assert allowance(limits, 0, bucket, at - 2) == 0
