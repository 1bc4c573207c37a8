"""Options of tasks and of single jobs: parsed, validated and turned into specs.

A spec is what an enqueue stores: task, payload and options of one job. The options of a task are the defaults of its
jobs; they are kept as a template, a spec without id and payload. Options are validated when they are declared, by the
same rules that stores apply (`domain/rules/check.py`), so that an enqueue can fail only because of its payload.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, Literal, TypedDict, TypeVar, Unpack

import msgspec

from millrace.app.duration import Duration, milliseconds, optional_milliseconds
from millrace.app.jobs import OneJob, job_ids
from millrace.domain.errors import InvalidInput, did_you_mean
from millrace.domain.job import HOUR, SECOND, OnDependency, OnHit, Scope, Spec
from millrace.domain.retry import DEFAULT_RETRY, RetryPolicy
from millrace.domain.rules.check import check_spec
from millrace.domain.rules.precedence import NAMES, is_explicit, with_origin

if TYPE_CHECKING:
    from millrace.app.host import Middleware
    from millrace.app.payloads.serde import AnySerde
    from millrace.app.task import Task

T = TypeVar("T", bound="Task[Any, Any]")
Backoff = Callable[[int], float]

NO_DEFAULTS: Mapping[str, Any] = {}
SOME_ID = "id"  # placeholder in a template until the enqueue


class JobKeywords(TypedDict, total=False):
    """The keywords of `task.options(…)`. They apply to jobs enqueued with the task object that this call returns."""

    id: str
    queue: str
    priority: int
    delay: Duration
    at: datetime | None
    expires: Duration | None
    group: str | None
    retry_blocks: bool
    key: str | None
    scope: Scope
    window: Duration
    on_hit: OnHit
    reuse: bool
    rerun_expired: bool
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
    tags: Sequence[str]
    wait: Duration | None
    within: Any  # the connection whose transaction the enqueue joins; see docs/transactions.md


class TaskKeywords(TypedDict, total=False):
    """The keywords of `@app.task(…)` besides `name`: the defaults of the task's jobs."""

    queue: str
    priority: int
    delay: Duration
    expires: Duration | None
    retry_blocks: bool
    max_attempts: int | None
    max_stalls: int | None
    retry: RetryPolicy | Sequence[Duration] | Backoff
    timeout: Duration | None
    retry_on: type[Exception] | Sequence[type[Exception]] | None
    dont_retry_on: type[Exception] | Sequence[type[Exception]]
    on_timeout: Literal["retry", "bury"]
    lease: Duration
    keep_result: Duration | None
    on_dead_letter: str | Task[..., Any] | None
    tags: Sequence[str]
    serde: str | AnySerde
    result_serde: str | AnySerde
    wait: Duration | None
    process: bool
    keep_log: bool
    middleware: Sequence[Middleware]
    inherit_middleware: bool


class TaskOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The validated options of a task. Durations are in milliseconds.

    `backoff` is the user's function, which returns seconds. It is not stored with jobs, nor are classes of exceptions.
    """

    queue: str = "default"
    priority: int = 0
    delay: int = 0
    expires: int | None = None
    retry_blocks: bool = True
    max_attempts: int | None = 4
    max_stalls: int | None = 3
    retry: RetryPolicy = DEFAULT_RETRY
    backoff: Backoff | None = None
    retry_on: Any = None  # classes of exceptions that are retried; None: all
    dont_retry_on: Any = ()  # classes of exceptions that bury the job at once
    timeout: int | None = 300 * SECOND
    on_timeout: Literal["retry", "bury"] = "retry"
    lease: int = 30 * SECOND
    keep_result: int | None = HOUR
    on_dead_letter: str | None = None
    tags: tuple[str, ...] = ()
    serde: str = "json"
    result_serde: str | None = None  # None: the same as `serde`
    wait: int | None = 30 * SECOND  # how long `call` waits for the result
    process: bool = False  # run in a process of its own, which can be killed
    keep_log: bool = False  # store the lines of `ctx.log` with the job


class Options(TaskOptions, Generic[T], frozen=True, kw_only=True, eq=False):
    """The options of a task, as read-only attributes. Calling this object returns the same task with other options:

    await send_email.options(delay="10m", priority=5).enqueue(to="ada@example.com")
    """

    task: T

    def __call__(self, **changes: Unpack[JobKeywords]) -> T:
        return self.task.bound(changes)

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in TaskOptions.__struct_fields__)
        return f"Options({shown})"


class DefaultKeywords(TypedDict, total=False):
    """Defaults that an app, a queue or a worker sets, for options that neither the caller nor the task sets."""

    lease: Duration
    timeout: Duration | None
    retry: RetryPolicy | Sequence[Duration]
    max_attempts: int | None
    keep_result: Duration | None


def read_defaults(where: str, keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Validate the defaults that are set and return them, with durations in milliseconds. Raises InvalidInput."""
    given = {name: value for name, value in keywords.items() if value is not msgspec.UNSET}
    values = _values(where, given, DefaultKeywords)
    if callable(values.get("retry")):
        raise InvalidInput(f"{where}: retry takes backoff(…) or a list of delays; only a task can have a function")
    check_spec(_checked(where, Spec, {"id": SOME_ID, "task": SOME_ID, **values}))
    return values


def read_task_options(
    task: str,
    keywords: Mapping[str, Any],
    serde: str,
    defaults: Mapping[str, Any] = NO_DEFAULTS,
    result_serde: str | None = None,
) -> tuple[TaskOptions, Spec]:
    """Validate the options of a task. Return them and the template of the task's jobs. Raises InvalidInput."""
    where = f"task {task!r}"
    values = _values(where, keywords, TaskKeywords)
    explicit = [name for name in NAMES if name in values]
    if callable(values.get("retry")):
        values["backoff"] = values.pop("retry")
        defaults = {name: value for name, value in defaults.items() if name != "retry"}
    if "serde" not in values:  # a task that sets only `serde` uses it for results too
        values = {"serde": serde, "result_serde": result_serde, **values}
    options = _checked(where, TaskOptions, {**defaults, **values})
    shared = set(TaskOptions.__struct_fields__) & set(Spec.__struct_fields__)
    template = with_origin(Spec(SOME_ID, task, **{name: getattr(options, name) for name in shared}), explicit)
    if options.result_serde not in (None, options.serde):
        template = msgspec.structs.replace(template, serde=f"{options.serde}/{options.result_serde}")
    check_spec(template)
    return options, template


def read_job_options(
    task: str,
    keywords: Mapping[str, Any],
    options: TaskOptions,
    template: Spec,
    defaults: Mapping[str, Any] = NO_DEFAULTS,
) -> tuple[TaskOptions, Spec]:
    """Return the task's options and template, with the values in `keywords` replaced. Raises InvalidInput.

    `defaults` are those of another queue, if the keywords have one.
    """
    where = f"options of task {task!r}"
    values = _values(where, keywords, JobKeywords)
    explicit = {name for name in NAMES if name in values or is_explicit(template, name)}
    values = {**{name: value for name, value in defaults.items() if name not in explicit}, **values}
    if "at" in values:  # replaces a delay, as a delay replaces `at`
        if "delay" in values:
            raise InvalidInput(f"{where}: pass at or delay, not both")
        values["delay"] = 0
    if callable(values.get("retry")):
        raise InvalidInput(f"{where}: a function cannot be stored with a job; set it on the task, or pass delays")
    ours = {name: value for name, value in values.items() if name in TaskOptions.__struct_fields__}
    specs = {name: value for name, value in values.items() if name in Spec.__struct_fields__}
    template = with_origin(_checked(where, Spec, msgspec.structs.asdict(template) | specs), explicit)
    check_spec(template)
    return _checked(where, TaskOptions, _as_dict(options) | ours), template


def _values(where: str, keywords: Mapping[str, Any], allowed: Any) -> dict[str, Any]:
    known = allowed.__annotations__
    for name in keywords:
        if name not in known:
            raise InvalidInput(f"{where}: there is no option {name!r}. {did_you_mean(name, known)}")
    return {name: _READ[name](name, value) if name in _READ else value for name, value in keywords.items()}


S = TypeVar("S", bound=msgspec.Struct)


def _checked(where: str, kind: type[S], values: dict[str, Any]) -> S:
    backoff = values.pop("backoff", None)  # a function: msgspec cannot check its type
    try:
        checked = msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        text, _, place = str(error).replace("`", "").partition(" - at $.")
        raise InvalidInput(f"{where}: {place or 'a value'} is invalid: {text}") from None
    return checked if backoff is None else msgspec.structs.replace(checked, backoff=backoff)


def _as_dict(options: TaskOptions) -> dict[str, Any]:
    return {name: getattr(options, name) for name in TaskOptions.__struct_fields__}


def backoff(
    initial: Duration = DEFAULT_RETRY.initial / 1000,
    *,
    factor: float = DEFAULT_RETRY.factor,
    maximum: Duration = DEFAULT_RETRY.maximum / 1000,
    jitter: float = DEFAULT_RETRY.jitter,
) -> RetryPolicy:
    """Return a retry policy: wait `initial` after the first failure, `factor` times longer after each further one.

    The delay is at most `maximum`. Each delay varies at random by the fraction `jitter`.

    @app.task(retry=backoff("5s", maximum="10m"))
    """
    return RetryPolicy(milliseconds("initial", initial), factor, milliseconds("maximum", maximum), jitter)


def _due(_: str, value: object) -> object:
    """Check an instant. `Task.bound` keeps it: what a job stores is the delay until then, by the store's clock."""
    if value is None or (isinstance(value, datetime) and value.utcoffset() is not None):
        return value
    if isinstance(value, datetime):
        raise InvalidInput(f"at={value!r} has no time zone; add one, e.g. tzinfo=timezone.utc")
    raise InvalidInput(f"at takes a datetime with a time zone, not {value!r}; use delay for a duration")


def _exceptions(what: str, value: object) -> object:
    classes = (value,) if isinstance(value, type) else value
    if what == "retry_on" and classes is None:
        return None
    if not isinstance(classes, tuple | list | set | frozenset) or not all(map(_is_exception, classes)):
        raise InvalidInput(f"{what} takes classes of exceptions, such as {what}=[ConnectionError]; not {value!r}")
    return tuple(classes)


def _is_exception(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Exception)


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


def _tags(_: str, value: object) -> object:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise InvalidInput(f"tags takes a list of words, such as tags=['import']; not {value!r}")
    return tuple(dict.fromkeys(value))


_READ: dict[str, Callable[[str, Any], Any]] = {
    "delay": milliseconds,
    "at": _due,
    "expires": optional_milliseconds,
    "window": milliseconds,
    "timeout": optional_milliseconds,
    "lease": milliseconds,
    "keep_result": optional_milliseconds,
    "wait": optional_milliseconds,
    "after": job_ids,
    "retry": _retry,
    "retry_on": _exceptions,
    "dont_retry_on": _exceptions,
    "on_dead_letter": _task_name,
    "headers": _headers,
    "tags": _tags,
}
