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

__all__ = [
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
    "days",
    "hours",
    "minutes",
    "seconds",
    "settings_in_seconds",
    "specs",
]
