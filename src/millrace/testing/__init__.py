"""Tools for tests: a virtual clock, builders, fault injection, an audit of a store, and conformance tests.

Test code that enqueues jobs with `on_memory(app)`, which yields a `Harness`. Test a single handler with `run(task, …)`.

To test your own store, import the tests of `millrace.testing.conformance` into a test module that supplies the fixtures
`store` and `clock`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from millrace.testing.builders import (
    a_burial,
    a_claim,
    a_failure,
    a_reclaim,
    a_retry,
    a_retry_change,
    a_spec,
    a_worker,
    an_extension,
    days,
    hours,
    minutes,
    seconds,
    settings_in_seconds,
    specs,
)
from millrace.testing.clock import VirtualClock
from millrace.testing.faults import Fault, FaultyStore, InjectedFault, scripted, seeded
from millrace.testing.invariants import Evidence, Violation, assert_holds, check, gather

if TYPE_CHECKING:
    from millrace.testing.drained import Drained, JobsFailed
    from millrace.testing.expectation import including
    from millrace.testing.harness import Harness, on_memory
    from millrace.testing.rehearsal import rehearse, run, run_sync

__all__ = [
    "Drained",
    "Evidence",
    "Fault",
    "FaultyStore",
    "Harness",
    "InjectedFault",
    "JobsFailed",
    "Violation",
    "VirtualClock",
    "a_burial",
    "a_claim",
    "a_failure",
    "a_reclaim",
    "a_retry",
    "a_retry_change",
    "a_spec",
    "a_worker",
    "an_extension",
    "assert_holds",
    "check",
    "days",
    "gather",
    "hours",
    "including",
    "minutes",
    "on_memory",
    "rehearse",
    "run",
    "run_sync",
    "scripted",
    "seconds",
    "seeded",
    "settings_in_seconds",
    "specs",
]

# The modules that run jobs are loaded on first use, because the pytest plugin is in this package too.
_LATER = {
    "Drained": "millrace.testing.drained",
    "Harness": "millrace.testing.harness",
    "JobsFailed": "millrace.testing.drained",
    "including": "millrace.testing.expectation",
    "on_memory": "millrace.testing.harness",
    "rehearse": "millrace.testing.rehearsal",
    "run": "millrace.testing.rehearsal",
    "run_sync": "millrace.testing.rehearsal",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_LATER[name]), name)
    return value
