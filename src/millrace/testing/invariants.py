"""Runs the audit of `millrace.domain.audit` in tests. `gather` reads a store, and `assert_holds` checks what was
read.
"""

from __future__ import annotations

from millrace.domain.audit import Evidence, Pause, Violation, check
from millrace.domain.event import Event
from millrace.domain.job import Job
from millrace.domain.request import Query
from millrace.domain.settings import QueueSettings, StoreSettings
from millrace.store.protocol import Store

__all__ = ["Evidence", "Pause", "Violation", "assert_holds", "check", "gather"]


async def gather(store: Store, *, since: int | None = None, fixed_limits: bool = False) -> Evidence:
    """Read all jobs, events, counts and settings of a store, as evidence for the audit.

    Nothing may write to the store meanwhile. `since` and `fixed_limits` are explained in `Evidence`.
    """
    before = await store.now()
    counts = await store.count()
    settings: dict[str, QueueSettings] = {}
    for row in counts:
        found = await store.control("queue", row.queue, {})
        assert isinstance(found, QueueSettings)
        settings[row.queue] = found
    kept = await store.control("store", "", {})
    assert isinstance(kept, StoreSettings)
    jobs, events = await _all_jobs(store), await _all_events(store)
    now = await store.now()
    return Evidence(
        jobs,
        events,
        counts,
        settings,
        now,
        kept.keep_events,
        since,
        steady=before == now,
        fixed_limits=fixed_limits,
        concurrent_writes=store.concurrent_writes,
    )


def assert_holds(evidence: Evidence) -> None:
    """Check the evidence. Raises an AssertionError that lists the violated invariants if there are any."""
    violations = check(evidence)
    if violations:
        shown = "\n".join(f"  {violation}" for violation in violations[:20])
        raise AssertionError(f"{len(violations)} violations of the invariants\n{shown}")


async def _all_jobs(store: Store) -> list[Job]:
    jobs: list[Job] = []
    cursor = None
    while True:
        page = await store.find(Query(archived=None, limit=1_000, cursor=cursor))
        jobs += page.jobs
        if page.cursor is None:
            return jobs
        cursor = page.cursor


async def _all_events(store: Store) -> list[Event]:
    events: list[Event] = []
    cursor = None
    while True:
        page = await store.events(cursor, 1_000)
        if not page.events:
            return events
        events += page.events
        cursor = page.cursor
