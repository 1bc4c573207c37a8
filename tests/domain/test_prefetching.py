"""Which specs a step names before it enqueues them, so that a store loads their rows in one request.

The memory store has nothing to load. Without these tests, only the number of requests of other stores would change.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from millrace.domain.change import Change
from millrace.domain.job import Job, Spec
from millrace.domain.ledger import Ledger
from millrace.domain.request import Query
from millrace.domain.rules import operate
from millrace.store.memory.tables import MemoryTables
from millrace.testing.builders import a_burial, a_claim, a_spec

NOW = 1_000_000


class NotingTables(MemoryTables):
    """Notes the ids of the specs that are named."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[list[str]] = []

    def prefetch_specs(self, specs: Sequence[Spec]) -> None:
        self.noted.append([spec.id for spec in specs])


@pytest.fixture
def tables() -> NotingTables:
    return NotingTables()


@pytest.fixture
def ledger(tables: NotingTables) -> Ledger:
    return Ledger(tables)


def take(ledger: Ledger, tables: NotingTables, **spec: object) -> Job:
    ledger.enqueue([a_spec(**spec)], NOW)
    [job] = ledger.claim(a_claim(), "claim", NOW)
    tables.noted.clear()
    return job


def test_a_settle_without_new_jobs_names_no_specs(ledger: Ledger, tables: NotingTables) -> None:
    """A hook job that dies has no hook job."""
    ended, dead, hook = [take(ledger, tables, **more) for more in ({}, {}, {"hook": True, "on_dead_letter": "mourn"})]

    ledger.settle([(ended.lease, Change.completed()), (dead.lease, a_burial()), (hook.lease, a_burial())], NOW)

    assert tables.noted == []


def test_a_settle_names_the_jobs_that_it_carries(ledger: Ledger, tables: NotingTables) -> None:
    """They are named once, also if one of them is a duplicate."""
    ledger.enqueue([a_spec(id="known", delay=60)], NOW)
    job = take(ledger, tables)

    change = msgspec.structs.replace(Change.completed(), jobs=(a_spec(id="known"), a_spec(id="new")))
    ledger.settle([(job.lease, change)], NOW)

    assert tables.noted == [["known", "new"]]


def test_a_settle_names_the_hook_jobs_of_jobs_that_die(ledger: Ledger, tables: NotingTables) -> None:
    job = take(ledger, tables, on_dead_letter="mourn")

    ledger.settle([(job.lease, a_burial())], NOW)

    [hook] = operate.find(ledger, Query(task="mourn"), NOW).jobs
    assert tables.noted == [[hook.id]]


def test_an_enqueue_names_its_specs_once_if_all_are_new(ledger: Ledger, tables: NotingTables) -> None:
    operate.control(ledger, "queue", "default", {"max_depth": 10}, NOW)  # not on the fast path

    ledger.enqueue([a_spec(id="a"), a_spec(id="b")], NOW)

    assert tables.noted == [["a", "b"]]


def test_an_enqueue_names_the_new_jobs_again_if_others_are_duplicates(ledger: Ledger, tables: NotingTables) -> None:
    ledger.enqueue([a_spec(id="known")], NOW)
    tables.noted.clear()

    ledger.enqueue([a_spec(id="known"), a_spec(id="new")], NOW)

    assert tables.noted == [["known", "new"], ["new"]]
