"""What a batch handler answers, taken apart: one end for each of its jobs, in their order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from millrace.domain.errors import QueueError

ITEM = "item"  # the one parameter of the payload of a batch task's job


class AnswerMissing(QueueError):
    """A batch handler did not say how one of its jobs ended."""


def answers(task: str, ids: Sequence[str], value: object) -> list[object]:
    """A value is a result, an exception a failure. Whatever the handler answered, no job is left without an end."""
    try:
        return [_made(end) for end in _taken_apart(task, ids, value)]
    except Exception as error:  # of a mapping or a text of the handler's own making
        return [error] * len(ids)


def _taken_apart(task: str, ids: Sequence[str], value: object) -> list[object]:
    if value is None:
        return [None] * len(ids)
    if isinstance(value, Mapping):
        said = cast("Mapping[Any, object]", value)
        return [said.get(name, said.get(index, _unsaid(name))) for index, name in enumerate(ids)]
    if isinstance(value, list | tuple) and len(value) == len(ids):
        return list(value)
    what = f"{len(value)} answers" if isinstance(value, list | tuple) else repr(value)[:200]
    problem = AnswerMissing(
        f"the handler of task {task!r} was given {len(ids)} jobs and answered with {what}. It must answer None, "
        "a list with one answer for each job in the same order, or a mapping by job id or index."
    )
    return [problem] * len(ids)


def _made(end: object) -> object:
    """An error may be answered as its class, as it may be raised."""
    if not (isinstance(end, type) and issubclass(end, BaseException)):
        return end
    try:
        return end()
    except Exception as error:  # it takes arguments
        return error


def _unsaid(job: str) -> AnswerMissing:
    return AnswerMissing(f"the batch handler's answer says nothing about job {job!r}")
