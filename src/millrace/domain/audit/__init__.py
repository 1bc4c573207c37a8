"""The audit: checks that a history of jobs keeps the promises of docs/guarantees.md.

The tests of every store, the demo, the simulation and the kill programs all call `check`, which returns the violations.
`steps` checks each job alone, `dependencies` and `lines` compare jobs with each other, `totals` checks whole queues,
and `reports` compares the history with records made outside of the store. The audit of the Spark lake implements the
rules of `steps` a second time; tests/spark/lake/test_audit_rules.py compares the two.
"""

from collections.abc import Iterator, Sequence

import msgspec

from millrace.domain.audit.dependencies import check_dependencies
from millrace.domain.audit.evidence import Evidence, Pause, ReportedRun, Violation
from millrace.domain.audit.lines import check_lines
from millrace.domain.audit.reports import check_answers, check_end, check_runs, taken_over
from millrace.domain.audit.steps import check_steps
from millrace.domain.audit.totals import check_counts, check_keys, check_limits, check_schedules
from millrace.domain.event import Event

__all__ = ["Evidence", "Pause", "ReportedRun", "Violation", "check", "taken_over"]


def check(evidence: Evidence) -> list[Violation]:
    """Return all violations; an empty list means that the history keeps all promises."""
    if evidence.late_events:
        evidence = msgspec.structs.replace(evidence, events=[*_without_repeats(evidence.events)], ordered_to=None)
    return [
        *check_steps(evidence),
        *(() if evidence.late_events else _check_order(evidence)),
        *check_counts(evidence),
        *check_schedules(evidence),
        *check_keys(evidence),
        *check_answers(evidence),
        *check_runs(evidence),
        *check_end(evidence),
    ]


def _check_order(evidence: Evidence) -> list[Violation]:
    """Return the violations that are found by comparing jobs by the order of their events."""
    between, blocked = check_dependencies(evidence)
    return [*between, *check_lines(evidence, blocked), *check_limits(evidence)]


def _without_repeats(events: Sequence[Event]) -> Iterator[Event]:
    """Yield the events without exact repeats. (seq, n) identifies an event."""
    first: dict[tuple[int, int], Event] = {}
    for event in events:
        if first.get((event.seq, event.n)) != event:
            first.setdefault((event.seq, event.n), event)
            yield event
