"""Settings: which changes are allowed, and what they come to (part 2)."""

from __future__ import annotations

import math

import pytest

from millrace.domain.errors import InvalidInput
from millrace.domain.job import DAY
from millrace.domain.rules.check import MAX_DURATION
from millrace.domain.settings import Limits, QueueSettings, StoreSettings, fair_period, updated


def test_nothing_changed_is_the_same() -> None:
    assert updated(QueueSettings(rate=2.0), {}) == QueueSettings(rate=2.0)


def test_changes_leave_the_rest_alone() -> None:
    new = updated(QueueSettings(max_depth=5), {"rate": 2, "paused": True, "paused_lanes": (), "keep_dead": None})

    assert new == QueueSettings(max_depth=5, rate=2.0, paused=True, keep_dead=None)
    assert updated(new, {"max_depth": None}).max_depth is None


def test_each_kind_has_its_own_settings() -> None:
    assert updated(Limits(), {"burst": 3}) == Limits(burst=3)
    assert updated(StoreSettings(), {"keep_events": DAY}) == StoreSettings(keep_events=DAY)
    with pytest.raises(InvalidInput, match="unknown setting 'paused'.*burst, max_running, rate"):
        updated(Limits(), {"paused": True})


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("max_running", 0),
        ("burst", 1),
        ("lanes", 1),
        ("max_depth", 0),
        ("keep_completed", 0),
        ("keep_dead", 0),
        ("dead_cap", 0),
        ("auto_retries", 0),
        ("auto_retry_delay", 0),
    ],
)
def test_numbers_have_a_floor_and_a_ceiling(name: str, least: int) -> None:
    assert getattr(updated(QueueSettings(), {name: least}), name) == least
    assert getattr(updated(QueueSettings(), {name: MAX_DURATION}), name) == MAX_DURATION
    for bad in (least - 1, MAX_DURATION + 1):
        with pytest.raises(InvalidInput, match=f"{name} must be between {least} and"):
            updated(QueueSettings(), {name: bad})


def test_the_feed_has_a_floor_too() -> None:
    assert updated(StoreSettings(), {"keep_events": 0}).keep_events == 0
    with pytest.raises(InvalidInput, match="keep_events"):
        updated(StoreSettings(), {"keep_events": -1})


@pytest.mark.parametrize("rate", [0, -1, math.nan, math.inf, 5e-324, 9e-7])
def test_a_rate_is_a_finite_number_above_zero(rate: float) -> None:
    with pytest.raises(InvalidInput, match="rate must be a finite number"):
        updated(Limits(), {"rate": rate})


@pytest.mark.parametrize("share", [-0.1, 1.1, math.nan])
def test_a_share_is_between_zero_and_one(share: float) -> None:
    with pytest.raises(InvalidInput, match="fair_share"):
        updated(QueueSettings(), {"fair_share": share})


@pytest.mark.parametrize("changes", [{"rate": "fast"}, {"paused": 1}, {"dead_overflow": "x"}, {"lanes": 1.5}])
def test_values_of_the_wrong_kind_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(InvalidInput, match="bad setting"):
        updated(QueueSettings(), changes)


def test_only_lanes_that_exist_can_be_paused() -> None:
    pool = QueueSettings(lanes=3)
    assert updated(pool, {"paused_lanes": [0, 2]}).paused_lanes == (0, 2)
    with pytest.raises(InvalidInput, match="lane 3 cannot be paused: the pool has lanes 0 to 2"):
        updated(pool, {"paused_lanes": [3]})
    with pytest.raises(InvalidInput, match="lane -1"):
        updated(pool, {"paused_lanes": [-1]})
    with pytest.raises(InvalidInput, match="the queue has no lanes"):
        updated(QueueSettings(), {"paused_lanes": [0]})
    with pytest.raises(InvalidInput, match="lane 2"):
        updated(QueueSettings(lanes=3, paused_lanes=(2,)), {"lanes": 2})


def test_the_hook_of_an_empty_queue_has_the_name_of_a_task() -> None:
    assert updated(QueueSettings(), {"on_empty": "notify"}).on_empty == "notify"
    with pytest.raises(InvalidInput, match="task name"):
        updated(QueueSettings(), {"on_empty": "no such name!"})


@pytest.mark.parametrize(
    ("share", "period"),
    [(0.0, 0), (5e-324, 10**9), (2e-94, 10**9), (0.05, 20), (0.3, 3), (0.5, 2), (0.9, 1), (1.0, 1)],
)
def test_a_share_becomes_every_how_many_claims(share: float, period: int) -> None:
    assert fair_period(QueueSettings(fair_share=share)) == period
