"""Builders and the clock: seconds in, milliseconds out, and every id its own."""

from __future__ import annotations

import subprocess
import sys

from millrace.domain.request import Claim, Reclaim
from millrace.domain.rules.check import check_spec
from millrace.testing import VirtualClock, a_claim, a_reclaim, a_retry, a_spec, days, hours, minutes, seconds, specs
from millrace.testing.builders import settings_in_seconds


def test_durations_are_given_in_seconds() -> None:
    spec = a_spec(delay=1.5, expires=60, window=2, timeout=None, lease=10, keep_result=0, priority=3)

    assert (spec.delay, spec.expires, spec.window, spec.timeout) == (1_500, 60_000, 2_000, None)
    assert (spec.lease, spec.keep_result, spec.priority) == (10_000, 0, 3)
    assert (seconds(0.0015), minutes(1), hours(1), days(1)) == (2, 60_000, 3_600_000, 86_400_000)
    assert settings_in_seconds({"keep_dead": 2, "keep_completed": None, "rate": 2}) == {
        "keep_dead": 2_000,
        "keep_completed": None,
        "rate": 2,
    }


def test_every_spec_is_valid_and_has_an_id_and_a_token_of_its_own() -> None:
    made = specs(100, queue="mail")
    for spec in made:
        check_spec(spec)

    assert len({spec.id for spec in made}) == len({spec.token for spec in made}) == 100
    assert {spec.queue for spec in made} == {"mail"}


def test_requests_say_what_a_test_needs_and_no_more() -> None:
    assert a_claim() == Claim(("default",), "worker")
    assert a_claim(5, queues=["a", "b"], tasks=["t"], lease=9) == Claim(
        ("a", "b"), "worker", 5, frozenset({"t"}), 9_000
    )
    assert a_reclaim() == Reclaim("reaper")
    assert a_reclaim(2, lease=1, queues=["q"], tasks=["t"]) == Reclaim("reaper", 2, 1_000, ("q",), frozenset({"t"}))


def test_a_retry_policy_has_no_jitter_unless_asked_for() -> None:
    assert {a_retry().delay(0, chance) for chance in (0.0, 0.5, 0.99)} == {1_000}
    assert a_retry(delays=[1, 2]).delays == (1_000, 2_000)


def test_the_clock_moves_when_it_is_told() -> None:
    clock = VirtualClock(1_000)
    assert (clock(), clock(), clock.advance(1.5), clock.advance(-1), clock()) == (1_000, 1_000, 2_500, 1_500, 1_500)
    clock.set(7)

    assert clock() == 7


def test_the_testing_package_needs_no_test_framework() -> None:
    report = "import sys, millrace.testing; print(*sorted({'pytest', 'hypothesis'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", report], capture_output=True, text=True, check=True)

    assert done.stdout.split() == []
