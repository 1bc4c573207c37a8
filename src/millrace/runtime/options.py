"""Options of tasks and of single jobs: as people write them, checked, and as a spec carries them.

Options of a task are the defaults of its jobs. All are checked when they are written down, by the same rules
that every store applies (`domain/check.py`), so that an enqueue meets only what its payload brings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, TypedDict, TypeVar, Unpack

import msgspec

from millrace.domain.check import check_spec
from millrace.domain.errors import InvalidInput
from millrace.domain.hints import meant
from millrace.domain.job import HOUR, SECOND, Job, OnDependency, OnHit, Scope, Spec
from millrace.domain.request import Enqueued
from millrace.domain.retry import DEFAULT_RETRY, RetryPolicy
from millrace.runtime.duration import Duration, milliseconds, optional_milliseconds

if TYPE_CHECKING:
    from millrace.runtime.host import Middleware
    from millrace.runtime.serde import Serde
    from millrace.runtime.task import Task

T = TypeVar("T", bound="Task[Any, Any]")
OneJob = str | Enqueued | Job | Spec
Backoff = Callable[[int], float]

SOME_ID = "id"  # stands in a template until an enqueue brings the real one


class JobKeywords(TypedDict, total=False):
    """What `task.options(…)` takes: for the jobs enqueued through what it returns."""

    id: str
    queue: str
    priority: int
    delay: Duration
    expires: Duration | None
    group: str | None
    retry_blocks: bool
    key: str | None
    scope: Scope
    window: Duration
    on_hit: OnHit
    reuse: bool
    after: OneJob | Iterable[OneJob]
    on_dependency: OnDependency
    allow_missing: bool
    max_attempts: int | None
    max_stalls: int | None
    retry: RetryPolicy | Sequence[Duration]
    timeout: Duration | None
    on_timeout: Literal["retry", "bury"]
    lease: Duration
    keep_result: Duration | None
    on_dead_letter: str | Task[..., Any] | None
    headers: Mapping[str, str] | None
    wait: Duration | None
    within: Any  # the connection whose transaction the enqueue is part of; see docs/transactions.md


class TaskKeywords(TypedDict, total=False):
    """What `@app.task(…)` takes besides the name: the defaults of the task's jobs."""

    queue: str
    priority: int
    delay: Duration
    expires: Duration | None
    retry_blocks: bool
    max_attempts: int | None
    max_stalls: int | None
    retry: RetryPolicy | Sequence[Duration] | Backoff
    timeout: Duration | None
    on_timeout: Literal["retry", "bury"]
    lease: Duration
    keep_result: Duration | None
    on_dead_letter: str | Task[..., Any] | None
    serde: str | Serde
    wait: Duration | None
    process: bool
    middleware: Sequence[Middleware]
    inherit_middleware: bool


class TaskOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a task, checked; durations in milliseconds. `backoff` answers seconds and stays with the code."""

    queue: str = "default"
    priority: int = 0
    delay: int = 0
    expires: int | None = None
    retry_blocks: bool = True
    max_attempts: int | None = 4
    max_stalls: int | None = 3
    retry: RetryPolicy = DEFAULT_RETRY
    backoff: Backoff | None = None
    timeout: int | None = 300 * SECOND
    on_timeout: Literal["retry", "bury"] = "retry"
    lease: int = 30 * SECOND
    keep_result: int | None = HOUR
    on_dead_letter: str | None = None
    serde: str = "json"
    wait: int | None = 30 * SECOND  # how long `call` waits for the result
    process: bool = False  # run in a process of its own, which can be killed


class Options(TaskOptions, Generic[T], frozen=True, kw_only=True, eq=False):
    """The options of a task to look at; called, the same task with other options for what it enqueues.

    await send_email.options(delay="10m", priority=5).enqueue(to="ada@example.com")
    """

    task: T

    def __call__(self, **changes: Unpack[JobKeywords]) -> T:
        return self.task.bound(changes)

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in TaskOptions.__struct_fields__)
        return f"Options({shown})"


def read_task_options(task: str, keywords: Mapping[str, Any], serde: str) -> tuple[TaskOptions, Spec]:
    """The options of a task and the template of its jobs."""
    where = f"task {task!r}"
    values = _values(where, keywords, TaskKeywords)
    if callable(values.get("retry")):
        values["backoff"] = values.pop("retry")
    options = _checked(where, TaskOptions, {"serde": serde, **values})
    shared = set(TaskOptions.__struct_fields__) & set(Spec.__struct_fields__)
    template = Spec(SOME_ID, task, **{name: getattr(options, name) for name in shared})
    check_spec(template)
    return options, template


def read_job_options(
    task: str, keywords: Mapping[str, Any], options: TaskOptions, template: Spec
) -> tuple[TaskOptions, Spec]:
    """Both again, with what was given for some jobs in place of the task's own."""
    where = f"options of task {task!r}"
    values = _values(where, keywords, JobKeywords)
    if callable(values.get("retry")):
        raise InvalidInput(f"{where}: a function cannot travel with a job; set it on the task, or give delays")
    ours = {name: value for name, value in values.items() if name in TaskOptions.__struct_fields__}
    specs = {name: value for name, value in values.items() if name in Spec.__struct_fields__}
    template = _checked(where, Spec, msgspec.structs.asdict(template) | specs)
    check_spec(template)
    return _checked(where, TaskOptions, _as_dict(options) | ours), template


def _values(where: str, keywords: Mapping[str, Any], allowed: Any) -> dict[str, Any]:
    known = allowed.__annotations__
    for name in keywords:
        if name not in known:
            raise InvalidInput(f"{where}: there is no option {name!r}. {meant(name, known)}")
    return {name: _READ[name](name, value) if name in _READ else value for name, value in keywords.items()}


S = TypeVar("S", bound=msgspec.Struct)


def _checked(where: str, kind: type[S], values: dict[str, Any]) -> S:
    backoff = values.pop("backoff", None)  # a function has no type that could be checked here
    try:
        checked = msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        text, _, place = str(error).replace("`", "").partition(" - at $.")
        raise InvalidInput(f"{where}: {place or 'a value'} is not right: {text}") from None
    return checked if backoff is None else msgspec.structs.replace(checked, backoff=backoff)


def _as_dict(options: TaskOptions) -> dict[str, Any]:
    return {name: getattr(options, name) for name in TaskOptions.__struct_fields__}


def job_ids(what: str, jobs: OneJob | Iterable[OneJob]) -> tuple[str, ...]:
    """Ids of jobs given as ids, answers or records, one or many."""
    if isinstance(jobs, OneJob):
        jobs = (jobs,)
    try:
        return tuple(job if isinstance(job, str) else job.id for job in jobs)
    except (TypeError, AttributeError):
        raise InvalidInput(f"{what} takes job ids, answers of enqueue, or jobs; not {jobs!r}") from None


def _retry(what: str, value: object) -> object:
    if isinstance(value, RetryPolicy) or callable(value):
        return value
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise InvalidInput(f"{what} takes backoff(…), a list of delays or a function; not {value!r}")
    return RetryPolicy(delays=tuple(milliseconds("a retry delay", delay) for delay in value))


def _task_name(what: str, value: object) -> object:
    if value is None or isinstance(value, str):
        return value
    name = getattr(value, "name", None)
    if not isinstance(name, str):
        raise InvalidInput(f"{what} takes a task or the name of one, not {value!r}")
    return name


def _headers(_: str, value: Mapping[str, str] | None) -> object:
    return dict(value) if isinstance(value, Mapping) else value


_READ: dict[str, Callable[[str, Any], Any]] = {
    "delay": milliseconds,
    "expires": optional_milliseconds,
    "window": milliseconds,
    "timeout": optional_milliseconds,
    "lease": milliseconds,
    "keep_result": optional_milliseconds,
    "wait": optional_milliseconds,
    "after": job_ids,
    "retry": _retry,
    "on_dead_letter": _task_name,
    "headers": _headers,
}
