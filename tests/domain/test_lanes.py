"""The lines that new jobs may belong to. The SQL stores load them before an enqueue."""

from __future__ import annotations

from millrace.domain.rules.lanes import lane_of, possible_lines
from millrace.domain.settings import QueueSettings
from millrace.domain.tables import QueueRow
from millrace.testing.builders import a_spec, specs

KEYED = f"l:{lane_of('k', 4)}"


def row(lanes: int | None = None, max_depth: int | None = None) -> QueueRow:
    return QueueRow("default", settings=QueueSettings(lanes=lanes, max_depth=max_depth), next_lane=3)


def test_without_lanes_each_group_is_a_line() -> None:
    assert possible_lines([a_spec(group="a"), a_spec(), a_spec(group="b")], row()) == {"g:a", "g:b"}


def test_a_hook_job_belongs_to_no_line() -> None:
    hooks = [a_spec(hook=True), a_spec(hook=True, group="a")]
    assert possible_lines(hooks, row()) == set()
    assert possible_lines(hooks, row(lanes=4)) == set()


def test_jobs_without_a_key_take_the_next_lanes() -> None:
    assert possible_lines(specs(2), row(lanes=4)) == {"l:3", "l:0"}
    assert len(possible_lines(specs(9), row(lanes=4))) == 4


def test_a_job_with_a_key_has_one_lane_whatever_the_depth() -> None:
    assert possible_lines([a_spec(group="k")], row(lanes=4)) == {KEYED}
    assert possible_lines([a_spec(group="k")], row(lanes=4, max_depth=5)) == {KEYED}


def test_a_job_without_a_key_may_go_to_any_lane_if_lanes_can_be_full() -> None:
    assert len(possible_lines([a_spec()], row(lanes=4, max_depth=5))) == 4
