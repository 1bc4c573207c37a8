"""Conversion of a batch handler's return value to one outcome per job, in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from millrace.domain.errors import QueueError

ITEM = "item"  # the only parameter in the payload of a batch task's job


class AnswerMissing(QueueError):
    """The failure of a job if the batch handler did not return exactly one entry for it."""


def answers(task: str, ids: Sequence[str], value: object) -> list[object]:
    """Convert the handler's return value to one outcome per job, in the order of `ids`.

    An exception is a failure; any other value is a result. If the handler returned no entry for a job, the outcome of
    the job is AnswerMissing. If the handler returned None, the result of each job is None.
    """
    try:
        return [_instance(end) for end in _split(task, ids, value)]
    except Exception as error:  # raised by the handler's own mapping or sequence type
        return [error] * len(ids)


def _split(task: str, ids: Sequence[str], value: object) -> list[object]:
    if value is None:
        return [None] * len(ids)
    if isinstance(value, Mapping):
        by_job = cast("Mapping[Any, object]", value)
        return [by_job.get(name, by_job.get(index, _missing(name))) for index, name in enumerate(ids)]
    if isinstance(value, list | tuple) and len(value) == len(ids):
        return list(value)
    what = f"{len(value)} answers" if isinstance(value, list | tuple) else repr(value)[:200]
    problem = AnswerMissing(
        f"the handler of task {task!r} got {len(ids)} jobs and returned {what}. It must return None, "
        "a list with one entry per job in the same order, or a mapping by job id or index."
    )
    return [problem] * len(ids)


def _instance(end: object) -> object:
    """Return the outcome. If it is an exception class, return an instance of the class, as `raise` does."""
    if not (isinstance(end, type) and issubclass(end, BaseException)):
        return end
    try:
        return end()
    except Exception as error:  # the class needs arguments
        return error


def _missing(job: str) -> AnswerMissing:
    return AnswerMissing(f"the batch handler returned nothing for job {job!r}")
