"""How a run of a shadow replay compares with the run of the same job in the past."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec

from millrace.domain.job import Job, State
from millrace.views.fingerprint import cause_of

ShadowOutcome = Literal[
    "same_result",
    "other_result",
    "unknown_result",
    "same_error",
    "other_error",
    "now_succeeds",
    "now_fails",
    "unfinished",
    "no_payload",
    "no_inputs",
]
Speed = Literal["faster", "slower", "similar"]
DIFFERENT = frozenset({"other_result", "other_error", "now_fails"})  # what a new version should not do unnoticed
MOST_TEXT = 1_000  # characters of a result or an error
STEP_MS = 5  # smaller differences are noise
STEP_SHARE = 0.2


class PastRun(msgspec.Struct, frozen=True):
    """How a job ended in the past. `result` is None if the job failed, or if its result is not kept any more."""

    completed: bool
    result: bytes | None = None
    error_type: str | None = None
    error_message: str | None = None
    duration_ms: int | None = None


class Comparison(msgspec.Struct, frozen=True):
    """The two runs of one job. Results and errors are set only if they differ."""

    outcome: ShadowOutcome
    speed: Speed | None = None
    duration_ms: int | None = None
    result_before: str | None = None
    result_after: str | None = None
    error_before: str | None = None
    error_after: str | None = None


def compare(before: PastRun, after: Job, duration_ms: int | None, load: Callable[[bytes | None], Any]) -> Comparison:
    """Compare two runs. `after` is the job of the sandbox, `duration_ms` the duration of its run, and `load` decodes
    results.
    """
    outcome = _outcome(before, after, load)
    speed = None
    if before.duration_ms is not None and duration_ms is not None and before.completed and _completed(after):
        speed = speed_of(before.duration_ms, duration_ms)
    if outcome not in DIFFERENT | {"now_succeeds", "unfinished"}:
        return Comparison(outcome, speed, duration_ms)
    return Comparison(
        outcome,
        speed,
        duration_ms,
        _text(before.result, load),
        _text(after.result, load) if _completed(after) else None,
        None if before.completed else _error_text(before.error_type, before.error_message),
        None if after.error is None else _error_text(after.error.type, after.error.message),
    )


def _outcome(before: PastRun, after: Job, load: Callable[[bytes | None], Any]) -> ShadowOutcome:
    if after.state not in (State.COMPLETED, State.DEAD):
        return "unfinished"
    if not before.completed:
        if _completed(after):
            return "now_succeeds"
        return "same_error" if _cause_before(before) == _cause_after(after) else "other_error"
    if not _completed(after):
        return "now_fails"
    if before.result is None:
        return "unknown_result"
    return "same_result" if _equal(before.result, after.result, load) else "other_result"


def _equal(before: bytes, after: bytes | None, load: Callable[[bytes | None], Any]) -> bool:
    """Return whether two encoded results are equal. Encodings of equal values can differ, for example in the order of
    fields.
    """
    if before == after:
        return True
    try:
        return bool(load(before) == load(after))
    except Exception:  # the result of the past does not fit the new annotation, or a serde or __eq__ raises
        return False


def speed_of(before: int, after: int) -> Speed:
    """Return `similar` unless the durations, in milliseconds, differ by more than noise."""
    if abs(after - before) <= max(STEP_MS, STEP_SHARE * before):
        return "similar"
    return "slower" if after > before else "faster"


def _completed(job: Job) -> bool:
    return job.state is State.COMPLETED


def _cause_before(before: PastRun) -> str:
    return cause_of(before.error_type or "", before.error_message or "")


def _cause_after(job: Job) -> str:
    return "" if job.error is None else cause_of(job.error.type, job.error.message)


def _error_text(kind: str | None, message: str | None) -> str:
    return f"{kind or ''}: {message or ''}".strip(": ")[:MOST_TEXT]


def _text(result: bytes | None, load: Callable[[bytes | None], Any]) -> str | None:
    if result is None:
        return None
    try:
        return result.decode()[:MOST_TEXT]  # JSON
    except UnicodeDecodeError:
        pass
    try:
        return repr(load(result))[:MOST_TEXT]
    except Exception:  # it does not fit the new annotation, or __repr__ raises
        return repr(result)[:MOST_TEXT]
