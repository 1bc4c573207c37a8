"""Compares jobs with what a test expects, and explains the differences.

A job matches when every value that the test names matches; other values are ignored. A value matches when it is equal.
Instead of a value, a test can pass a type, a regular expression, a predicate function, or any object with its own
equality (`unittest.mock.ANY`, `pytest.approx`, `including`).
"""

from __future__ import annotations

import difflib
import inspect
import pprint
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from millrace.app.duration import milliseconds
from millrace.app.format import plural
from millrace.app.jobs import job_ids
from millrace.app.payloads.inputs import has_inputs
from millrace.domain.errors import InvalidInput
from millrace.domain.job import ALIASES, Job, word

if TYPE_CHECKING:
    from millrace.app.app import App
    from millrace.app.task import Task

SHOWN = 5
NARROW = 60


class including:  # lower case because it is used like a function: to=including(city="London")
    """Equals any mapping or object that has at least these values."""

    def __init__(self, **wanted: Any) -> None:
        self._wanted = wanted

    def __eq__(self, other: object) -> bool:
        return all(fits(value, _part(other, name)) for name, value in self._wanted.items())

    __hash__ = None  # type: ignore[assignment]  # equal to too much to be a key

    def __repr__(self) -> str:
        return f"including({', '.join(f'{name}={value!r}' for name, value in self._wanted.items())})"


class _Missing:
    def __repr__(self) -> str:
        return "(nothing of that name)"


MISSING = _Missing()


def _part(whole: object, name: str) -> object:
    if isinstance(whole, Mapping):
        return whole.get(name, MISSING)
    return getattr(whole, name, MISSING)


def fits(expected: Any, actual: Any) -> bool:
    if isinstance(expected, type):
        return isinstance(actual, expected)
    if isinstance(expected, re.Pattern):
        return isinstance(actual, str) and expected.search(actual) is not None
    if inspect.isroutine(expected):
        return _says_yes(expected, actual)
    return bool(expected == actual)


def _says_yes(question: Callable[[Any], Any], value: object) -> bool:
    """Return whether the predicate accepts the value. A predicate that raises an exception does not accept it."""
    try:
        return bool(question(value))
    except Exception:
        return False


def arguments(app: App, job: Job) -> dict[str, Any]:
    """Return the arguments of the job's handler, including defaults.

    Arguments that are results of parents are left out. If the app does not have the task, return the decoded payload.
    """
    task = app.tasks.get(job.task)
    if task is None:
        decoded = app.serdes.decode(job.payload, job.spec.payload_serde)
        return decoded if isinstance(decoded, dict) else {"payload": decoded}
    if has_inputs(job.spec):  # results of parents, which are not known before it runs
        given: dict[str, Any] = app.serdes.decode(job.payload, job.spec.payload_serde)
    else:
        given = task.load(job.payload, job.spec.serde)
    parameters = inspect.signature(task.handler).parameters.values()
    found = {
        one.name: given.pop(one.name, one.default) for one in parameters if one.name not in task.injected_parameters
    }
    return {name: value for name, value in found.items() if value is not inspect.Parameter.empty} | given


_FACTS: dict[str, Callable[[Job, int], Any]] = {
    "id": lambda job, now: job.id,
    "queue": lambda job, now: job.queue,
    "priority": lambda job, now: job.priority,
    "delay": lambda job, now: job.spec.delay / 1000,
    "group": lambda job, now: job.spec.group,
    "key": lambda job, now: job.spec.key,
    "headers": lambda job, now: job.spec.headers or {},
    "tags": lambda job, now: list(job.spec.tags),
    "after": lambda job, now: list(job.spec.after),
    "state": word,
}


def _read_fact(name: str, value: Any) -> Any:
    """Convert the expected value of an option to the form that jobs are compared with.

    Durations become seconds, state aliases become states, and jobs in `after` become their ids.
    """
    plain = isinstance(value, str | int | float)
    if name == "delay" and (plain or hasattr(value, "total_seconds")):
        return milliseconds(name, value) / 1000
    if name == "state" and isinstance(value, str):
        value = ALIASES.get(value, value)
        return (lambda one: one in _WAITING) if value == "waiting" else value
    if name == "after" and isinstance(value, str | Sequence | msgspec.Struct):
        return list(job_ids(name, value))  # type: ignore[arg-type]  # it refuses what it cannot read
    return value


_WAITING = ("blocked", "scheduled", "retrying", "ready")


class Expectation:
    """The jobs that a test expects: their task (None for any task), arguments and options."""

    def __init__(
        self, app: App, task: Task[..., Any] | str | None, args: Mapping[str, Any] | None, keywords: Mapping[str, Any]
    ) -> None:
        self._app = app
        self._task = task if task is None or isinstance(task, str) else task.name
        known = self._parameters()
        facts = {name: value for name, value in keywords.items() if name in _FACTS}
        if args is None and known is not None and (both := sorted(facts.keys() & known)):
            raise InvalidInput(
                f"{both[0]!r} is an option of jobs and also a parameter of task {self._task!r}. Name which one: "
                f"args={{{both[0]!r}: …}} for the parameter, with args={{}} as well for the option"
            )
        self._args = {**(args or {}), **{name: value for name, value in keywords.items() if name not in _FACTS}}
        if known is not None and (unknown := sorted(self._args.keys() - known)):
            raise InvalidInput(
                f"task {self._task!r} has no parameter {unknown[0]!r}, so no job can have it. Its parameters are: "
                f"{', '.join(sorted(known)) or 'none'}; options to ask for are: {', '.join(_FACTS)}"
            )
        self._facts = {name: _read_fact(name, value) for name, value in facts.items()}
        self._said = {**self._args, **facts}

    def _parameters(self) -> set[str] | None:
        """Return the names of the task's parameters, or None if they are not known or not fixed.

        Raises UnknownTask if the app has tasks, but none of this name.
        """
        task = None if self._task is None else self._app.tasks.get(self._task)
        if task is None:
            if self._task is not None and not self._app.tasks:
                return None
            if self._task is not None:
                self._app.find_task(self._task)  # raises for a misspelt name, which would never match
            return None
        signature = task._signature  # parameters of one job; the handler of a batch task takes many
        return set(signature.names) if signature.extra is msgspec.UNSET else None

    def differences(self, job: Job, now: int) -> list[tuple[str, Any, Any]]:
        """Return (name, expected, actual) for each value of the job that does not match."""
        found = arguments(self._app, job) if self._args else {}
        pairs = [(name, value, value, found.get(name, MISSING)) for name, value in self._args.items()]
        pairs += [(name, self._said[name], value, _FACTS[name](job, now)) for name, value in self._facts.items()]
        return [(name, said, actual) for name, said, expected, actual in pairs if not fits(expected, actual)]

    def sort(self, jobs: Sequence[Job], now: int) -> tuple[list[Job], list[Job]]:
        """Return two lists: the jobs that match, and the other jobs of the expected task. Both keep the order of the
        input.
        """
        ours = [job for job in jobs if self._task is None or job.task == self._task]
        meant = [job for job in ours if not self.differences(job, now)]
        seqs = {job.seq for job in meant}
        return meant, [job for job in ours if job.seq not in seqs]

    # ── text ──────────────────────────────────────────────────────────────────────────────────

    def __str__(self) -> str:
        of_task = "" if self._task is None else f" of task {self._task!r}"
        said = "".join(f"\n    {name} = {_shown(value)}" for name, value in self._said.items())
        return f"job{of_task}" + (f" with{said}" if said else "")

    def missing(self, others: Sequence[Job], all_jobs: Sequence[Job], now: int) -> str:
        lines = [f"there is no {self}"]
        if others:
            near = sorted(others, key=lambda job: len(self.differences(job, now)))
            kind = "" if self._task is None else " of this task"
            lines.append(f"{plural(len(others), 'other job')}{kind}, closest first (- expected, + enqueued):")
            for job in near[:SHOWN]:
                lines += [f"  {_title(job, now)}", *_diff(self.differences(job, now))]
            if len(near) > SHOWN:
                lines.append(f"  … and {len(near) - SHOWN} more")
        elif all_jobs:
            counted = Counter(job.task for job in all_jobs)
            lines.append("enqueued were: " + ", ".join(f"{times} × {task}" for task, times in sorted(counted.items())))
        else:
            lines.append("nothing was enqueued at all")
        return "\n".join(lines)

    def unwanted(self, jobs: Sequence[Job], expected: int, now: int) -> str:
        wanted = "no" if expected == 0 else f"exactly {expected} times a"
        lines = [f"expected {wanted} {self}", f"found {len(jobs)}:"]
        for job in jobs[:SHOWN]:
            shown = ", ".join(f"{name}={_shown(value)}" for name, value in arguments(self._app, job).items())
            lines.append(f"  {_title(job, now)}: ({shown})")
        if len(jobs) > SHOWN:
            lines.append(f"  … and {len(jobs) - SHOWN} more")
        return "\n".join(lines)


def _title(job: Job, now: int) -> str:
    return f"{job.task} {job.id} on queue {job.queue!r}, {word(job, now)}"


def _shown(value: object) -> str:
    if inspect.isroutine(value) and getattr(value, "__name__", "") != "<lambda>":
        return f"{value.__qualname__}(…)"
    return "a value for which the lambda returns true" if inspect.isroutine(value) else repr(value)


def _diff(differences: list[tuple[str, Any, Any]]) -> list[str]:
    lines: list[str] = []
    for name, expected, actual in differences:
        wanted, found = _shown(expected), repr(actual)
        if max(len(wanted), len(found)) <= NARROW or inspect.isroutine(expected):
            lines += [f"    - {name} = {wanted}", f"    + {name} = {found}"]
        else:
            before, after = (pprint.pformat(value, width=80).splitlines() for value in (expected, actual))
            lines += [f"      {name}:", *(f"    {line.rstrip()}" for line in difflib.ndiff(before, after))]
    return lines
