"""Fingerprints: the same cause, the same mark; what varies from job to job does not count."""

from __future__ import annotations

import msgspec
import pytest

from millrace.domain.job import Job, Spec, State
from millrace.domain.outcome import Failure
from millrace.views.fingerprint import cause, fingerprint


def dead(message: str, kind: str = "ValueError", task: str = "charge", reason: str = "max_attempts_exceeded") -> Job:
    return Job(Spec("x", task), 1, 1, State.DEAD, 0, 0, error=Failure(kind, message), reason=reason)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("card 4711 was refused", "card 12 was refused"),
        ("no user 'ada'", "no user 'bob'"),
        ("<Conn at 0x7f00aa> is closed", "<Conn at 0x7f99bb> is closed"),
        ("job 01a1df6d-3d61-7000-a9ac-7e5b0224c8de failed", "job 77a1df6d-3d61-7000-a9ac-7e5b0224c811 failed"),
        ("object deadbeef01 is gone", "object 0123456789abcdef is gone"),
        ("broken\nsecond line 1", "broken\nanother second line"),
    ],
)
def test_what_varies_from_job_to_job_does_not_count(one: str, other: str):
    assert fingerprint(dead(one)) == fingerprint(dead(other))


def test_another_task_reason_type_or_text_is_another_cause():
    marks = {
        fingerprint(job)
        for job in (
            dead("refused"),
            dead("declined"),
            dead("refused", kind="KeyError"),
            dead("refused", task="refund"),
            dead("refused", reason="timeout"),
            msgspec.structs.replace(dead("refused"), error=None),
        )
    }

    assert len(marks) == 6


def test_a_cause_reads_as_one_line():
    assert cause(dead("card 4711 of 'ada' was refused\nmore")) == "ValueError: card … of … was refused"
