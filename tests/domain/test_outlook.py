"""What a worker waits for: time, or room under a limit, and under which one."""

from __future__ import annotations

import pytest

from millrace.domain.ledger import Ledger
from millrace.domain.rules import operate
from millrace.domain.rules.outlook import Outlook
from millrace.store.memory.tables import MemoryTables
from millrace.testing.builders import a_claim, a_spec, seconds

NOW = 1_000_000
A, B = frozenset({"a"}), frozenset({"b"})


@pytest.fixture
def ledger() -> Ledger:
    return Ledger(MemoryTables(1))


def put(ledger: Ledger, task: str, queue: str = "q", delay: float = 0) -> None:
    ledger.enqueue([a_spec(task=task, queue=queue, delay=delay)], NOW)


def take(ledger: Ledger, queue: str = "q") -> None:
    assert ledger.claim(a_claim(queue=queue), f"claim {queue}", NOW)


def limit(ledger: Ledger, target: operate.Target, name: str, **limits: object) -> None:
    operate.control(ledger, target, name, limits, NOW)


def test_what_is_due_can_be_claimed(ledger: Ledger) -> None:
    put(ledger, "a")

    assert ledger.outlook(["q"], A, NOW) == Outlook(NOW)
    assert ledger.outlook(["q"], B, NOW) == Outlook(None)
    assert ledger.outlook(["other"], None, NOW) == Outlook(None)


@pytest.mark.parametrize("closed", [{"paused": True}, {"max_running": 1}])
def test_a_closed_queue_is_waited_for_by_who_knows_what_is_due_in_it(ledger: Ledger, closed: dict[str, object]) -> None:
    put(ledger, "b")
    take(ledger)
    put(ledger, "a")
    put(ledger, "late", delay=5)
    limit(ledger, "queue", "q", **closed)

    assert ledger.outlook(["q"], A, NOW) == Outlook(None, frozenset({("q", None)}))
    assert ledger.outlook(["q"], B, NOW) == Outlook(None)
    assert ledger.outlook(["q"], frozenset({"late"}), NOW) == Outlook(None, again=NOW + seconds(5))
    assert ledger.outlook(["q"], frozenset({"late"}), NOW).until == NOW + seconds(5)


def test_a_full_task_is_waited_for_where_its_jobs_are(ledger: Ledger) -> None:
    limit(ledger, "task", "a", max_running=1)
    put(ledger, "a", "here")
    take(ledger, "here")
    put(ledger, "a", "there")

    assert ledger.outlook(["there"], A, NOW) == Outlook(None, frozenset({(None, "a")}))
    assert ledger.outlook(["here"], A, NOW) == Outlook(None)
    assert ledger.outlook(["there"], B, NOW) == Outlook(None)
    put(ledger, "b", "there")
    assert ledger.outlook(["there"], None, NOW) == Outlook(NOW, frozenset({(None, "a")}))


def test_a_rate_is_waited_for_in_time_and_for_a_change_of_it(ledger: Ledger) -> None:
    limit(ledger, "queue", "q", rate=0.1, burst=1)
    put(ledger, "a")
    put(ledger, "a")
    take(ledger)

    assert ledger.outlook(["q"], A, NOW) == Outlook(NOW + seconds(10), frozenset({("q", None)}))


def test_a_queue_that_is_closed_is_waited_for_before_a_task_that_is_full(ledger: Ledger) -> None:
    """Room for the task would be of no use, and is left to whoever can use it."""
    limit(ledger, "task", "a", max_running=1)
    put(ledger, "a", "here")
    take(ledger, "here")
    put(ledger, "a", "there")
    limit(ledger, "queue", "there", paused=True)

    assert ledger.outlook(["there"], A, NOW) == Outlook(None, frozenset({("there", None)}))
