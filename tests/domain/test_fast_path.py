"""What may take the fast path: each setting, option and part of a change that rules it out does so by itself."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.domain.change import Change
from millrace.domain.rules.fast_path import accepts_all, claims_by_order, ends_alone, is_simple, only_completes
from millrace.domain.settings import QueueSettings
from millrace.testing.builders import a_burial, a_failure, a_retry_change, a_spec

DEAD_LIMIT = {"dead_overflow": "reject"}
SETTINGS: list[dict[str, Any]] = [
    {"lanes": 2},
    {"max_depth": 0},
    DEAD_LIMIT,
    {"max_running": 0},
    {"rate": 1.0},
    {"fair_share": 0.5},
    {"on_empty": "bell"},
    {"keep_completed": 0},
]


def test_a_plain_spec_queue_and_change_take_the_fast_path():
    plain = QueueSettings()

    assert is_simple(a_spec())
    assert accepts_all(plain) and claims_by_order(plain) and ends_alone(plain)
    assert only_completes(Change.completed(b"1", duration=5))


@pytest.mark.parametrize("said", [{"key": "k"}, {"group": "g"}, {"after": ("parent",)}, {"hook": True}])
def test_a_spec_with_a_rule_of_its_own_is_not_simple(said):
    assert not is_simple(a_spec(**said))


@pytest.mark.parametrize("changed", SETTINGS, ids=str)
def test_a_setting_rules_out_the_fast_path_of_its_own_operations(changed):
    settings = QueueSettings(**changed)

    assert accepts_all(settings) is (changed not in ({"lanes": 2}, {"max_depth": 0}, DEAD_LIMIT))
    assert claims_by_order(settings) is (changed not in ({"max_running": 0}, {"rate": 1.0}, {"fair_share": 0.5}))
    assert ends_alone(settings) is (changed not in ({"max_running": 0}, {"on_empty": "bell"}, {"keep_completed": 0}))


@pytest.mark.parametrize(
    "change",
    [
        a_retry_change(),
        a_burial(),
        Change.snooze(5),
        Change.release(),
        Change.cancel(),
        Change.completed(jobs=(a_spec(),)),
        Change.completed(error=a_failure()),
        Change.completed(failed=1),
        Change.completed(stalled=1),
        Change.completed(reason="requested"),
    ],
    ids=str,
)
def test_a_change_that_does_more_than_complete_a_job_does_not_take_the_fast_path(change):
    assert not only_completes(change)
