"""For tests of code that uses Millrace, and of stores: a virtual clock, builders, faults, invariants, conformance.

A store of your own is held to the same promises by importing the sentences of `millrace.testing.conformance`
into a test module that supplies the fixtures `store` and `clock`.
"""

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

__all__ = [
    "Evidence",
    "Fault",
    "FaultyStore",
    "InjectedFault",
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
    "minutes",
    "scripted",
    "seconds",
    "seeded",
    "settings_in_seconds",
    "specs",
]
