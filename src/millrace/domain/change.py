"""Changes: what a store writes to a job when a run ends. `rules/decide.py` derives the change from the outcome."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from millrace.domain.job import Spec
from millrace.domain.outcome import Failure


class Verb(StrEnum):
    COMPLETE = "complete"
    RETRY = "retry"
    SNOOZE = "snooze"
    RELEASE = "release"
    BURY = "bury"
    CANCEL = "cancel"


RETURNS_TO_WAITING = frozenset({Verb.RETRY, Verb.SNOOZE, Verb.RELEASE})


class Change(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """What `settle` writes to a job when a run ends.

    `failed` and `stalled` are added to the job's failures and stalls. `jobs` are enqueued in the same step. `log`
    replaces the job's log; None leaves it as it is.
    """

    verb: Verb
    delay: int = 0
    result: bytes | None = None
    error: Failure | None = None
    reason: str | None = None
    failed: int = 0
    stalled: int = 0
    duration: int | None = None
    jobs: tuple[Spec, ...] = ()
    keep_result: int | msgspec.UnsetType | None = msgspec.UNSET  # the worker's default, in place of the stored value
    log: bytes | None = None

    @classmethod
    def completed(cls, result: bytes | None = None, **more: object) -> Change:
        return cls(Verb.COMPLETE, result=result, **more)  # type: ignore[arg-type]

    @classmethod
    def retry(cls, error: Failure | None, *, delay: int, stalled: int = 0) -> Change:
        return cls(Verb.RETRY, delay=delay, error=error, failed=1, stalled=stalled)

    @classmethod
    def snooze(cls, delay: int) -> Change:
        return cls(Verb.SNOOZE, delay=delay)

    @classmethod
    def release(cls, delay: int = 0) -> Change:
        return cls(Verb.RELEASE, delay=delay)

    @classmethod
    def bury(cls, error: Failure | None, reason: str, *, failed: int = 1, stalled: int = 0) -> Change:
        return cls(Verb.BURY, error=error, reason=reason, failed=failed, stalled=stalled)

    @classmethod
    def cancel(cls) -> Change:
        return cls(Verb.CANCEL, reason="requested")
