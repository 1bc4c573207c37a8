"""Options of tasks and calls: which ones there are, and the options of Millrace that they become."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from re import Pattern
from typing import TYPE_CHECKING, Any

from millrace.contrib.celery import brokers
from millrace.contrib.celery.conf import check_serializer
from millrace.contrib.celery.exceptions import NotCovered, user_line
from millrace.domain.errors import InvalidInput, did_you_mean

if TYPE_CHECKING:
    from millrace.contrib.celery.app import Celery
    from millrace.contrib.celery.task import CeleryTask

PASSED = 0.001  # the `expires` of a job whose time has passed at the call: the shortest there is

# The options of @app.task(…), and attributes of task classes.
TASK_OPTIONS = frozenset(
    {
        *("acks_late", "autoretry_for", "base", "bind", "default_retry_delay", "dont_autoretry_for", "expires"),
        *("ignore_result", "max_retries", "name", "priority", "queue", "retry_backoff", "retry_backoff_max"),
        *("retry_jitter", "retry_kwargs", "serializer", "throws", "time_limit", "typing"),
    }
)
WITHOUT_EFFECT = frozenset(
    {"acks_on_failure_or_timeout", "resultrepr_maxsize", "send_events", "store_errors_even_if_ignored"}
    | {"track_started", "trail"}
)
_REFUSED_ON_TASKS = {
    "after_return": "Define it in a class, and pass the class as base=…",
    "compression": "Remove it",
    "exchange": "Pass queue=…",
    "lazy": "Remove it",
    "on_failure": "Define it in a class, and pass the class as base=…",
    "on_success": "Define it in a class, and pass the class as base=…",
    "pydantic": "Millrace tasks read pydantic models: write @app.millrace.task, and enqueue with .sync.enqueue(…)",
    "rate_limit": "Celery's limit is one per worker. Limit the task over all workers, once: "
    "app.millrace.sync.limit('{name}', rate=…) with a rate per second",
    "reject_on_worker_lost": "Write acks_late=True: such a task runs again if its worker dies",
    "routing_key": "Pass queue=…",
    "shared": "Write @shared_task",
    "soft_time_limit": "A thread cannot be interrupted. Write time_limit=…: after that time, the task has failed",
}
_NO_EFFECT_IN_CALLS = frozenset({"add_to_parent", "retry", "retry_policy"})
_REFUSED_IN_CALLS = {
    "chain": "Write chain(…)",
    "chord": "Write chord(…)",
    "compression": "Remove it",
    "connection": "Remove it: the app has its connections",
    "exchange": "Pass queue=…",
    "producer": "Remove it: the app has its connections",
    "publisher": "Remove it: the app has its connections",
    "reply_to": "Read the result with AsyncResult",
    "routing_key": "Pass queue=…",
    "shadow": "Remove it: the dashboard shows the name of the task",
    "soft_time_limit": "A thread cannot be interrupted. Pass time_limit=…",
}
CALL_OPTIONS = frozenset(
    {"countdown", "eta", "expires", "headers", "ignore_result", "link", "link_error", "priority", "queue"}
    | {"serializer", "task_id", "time_limit"}
)


def check_task_options(name: str, options: Mapping[str, Any]) -> None:
    """Raise an error for an option of a task that is unknown, or that is not covered."""
    for option, value in options.items():
        if option in TASK_OPTIONS or option in WITHOUT_EFFECT:
            continue
        if option in _REFUSED_ON_TASKS:
            if value is not None:
                raise NotCovered(
                    f"the option {option!r} of task {name!r}", _REFUSED_ON_TASKS[option].replace("{name}", name)
                )
            continue
        raise InvalidInput(
            f"{user_line()}: task {name!r}: there is no option {option!r}. {did_you_mean(option, TASK_OPTIONS)} "
            f"For an attribute of your own, write it in a class, and pass the class as base=…"
        )
    if options.get("serializer") is not None:
        check_serializer(f"serializer of task {name!r}", options["serializer"])


def registered_as(app: Celery, task: CeleryTask) -> dict[str, Any]:
    """Return the options with which Millrace registers a task."""
    conf, name = app.conf, task.name or ""
    serializer = task.serializer or conf.task_serializer
    found = {
        "name": name,
        "queue": _queue_name(task.queue or route_of(conf.task_routes, name) or conf.task_default_queue),
        "priority": app.priority(task.priority),
        "max_attempts": None,  # `self.retry` counts
        "retry_on": (),  # a plain exception fails the task: Celery retries what the task asks for
        "timeout": conf.task_time_limit if task.time_limit is None else task.time_limit,
        "on_timeout": "bury",
        "keep_result": 0 if _first(task.ignore_result, conf.task_ignore_result) else kept_for(conf.result_expires),
        "serde": serializer,
        "result_serde": conf.result_serializer,
    }
    if task.expires is not None:
        found["expires"] = _expires(app, task.expires)
    if not _first(task.acks_late, conf.task_acks_late):
        found["max_stalls"] = 1  # Celery has acknowledged it before it runs: it does not run twice
    return found


def job_options(app: Celery, task: str, options: Mapping[str, Any], *, serializer: str | None) -> dict[str, Any]:
    """Return the options of Millrace for one call. `serializer` is that of the task, if the task is known here."""
    _check_call(task, options, serializer)
    found: dict[str, Any] = {}
    if options.get("task_id") is not None:
        found["id"] = str(options["task_id"])
    if options.get("countdown") is not None and options.get("eta") is not None:
        raise InvalidInput(f"{user_line()}: pass countdown or eta, not both")
    if options.get("countdown") is not None:
        found["delay"] = max(0, _seconds(options["countdown"]))
    if options.get("eta") is not None:
        found["at"] = aware(app, options["eta"])
    if options.get("expires") is not None:
        found["expires"] = _expires(app, options["expires"])
        if found["expires"] == PASSED:
            found["delay"] = max(1, found.get("delay", 0))  # not due before it expires
    if options.get("queue"):
        found["queue"] = _queue_name(options["queue"])
    if options.get("priority") is not None:
        found["priority"] = app.priority(options["priority"])
    if options.get("time_limit") is not None:
        found["timeout"] = options["time_limit"]
    if options.get("headers"):
        found["headers"] = {str(key): str(value) for key, value in options["headers"].items()}
    if options.get("ignore_result") is not None:
        found["keep_result"] = 0 if options["ignore_result"] else kept_for(app.conf.result_expires)
    return found


def _check_call(task: str, options: Mapping[str, Any], serializer: str | None) -> None:
    for option, value in options.items():
        if option in CALL_OPTIONS or option in _NO_EFFECT_IN_CALLS or value is None:
            continue
        if option in _REFUSED_IN_CALLS:
            raise NotCovered(f"the option {option!r} of a call of {task!r}", _REFUSED_IN_CALLS[option])
        raise InvalidInput(
            f"{user_line()}: a call of {task!r} has no option {option!r}. {did_you_mean(option, CALL_OPTIONS)}"
        )
    asked = options.get("serializer")
    if asked is not None and asked != (serializer or "json"):
        raise NotCovered(f"serializer={asked!r} for one call", f"Set it for the task: @app.task(serializer={asked!r})")


def route_of(routes: Any, task: str) -> str | None:
    """Return the queue that `task_routes` names for a task, or None.

    As in Celery, the first router with a route for the task decides. In a router, the name of the task comes before
    patterns, and patterns are tried in their order.
    """
    for router in _routers(routes):
        if task in router:
            return router[task]
        for pattern, queue in router.items():
            if _matches(pattern, task):
                return queue
    return None


def _routers(routes: Any) -> list[dict[str | Pattern[str], str | None]]:
    """Return the queues by name and pattern, one dict per router. A router is a dict, or a list of pairs."""
    routers = routes if isinstance(routes, list | tuple) else [routes or {}]
    return [{pattern: _queue_of_route(pattern, route) for pattern, route in _items(router)} for router in routers]


def _items(router: Any) -> Iterable[tuple[Any, Any]]:
    if callable(router) or isinstance(router, str):
        raise NotCovered("a function in task_routes", _A_DICT)
    try:
        return dict(router).items()
    except (TypeError, ValueError):
        raise NotCovered(f"{router!r} in task_routes", _A_DICT) from None


_A_DICT = "Write a dict: {'shop.tasks.*': {'queue': 'shop'}}"


def _matches(pattern: str | Pattern[str], task: str) -> bool:
    if isinstance(pattern, Pattern):
        return pattern.match(task) is not None
    return "*" in pattern and fnmatchcase(task, pattern)  # for Celery, text without * is a name


def _queue_of_route(pattern: Any, route: Any) -> str | None:
    if isinstance(route, str):
        return route
    other = sorted(set(route) - {"queue"})
    if other:
        raise NotCovered(f"{other[0]!r} in task_routes, for {pattern!r}", "A route has a queue: {'queue': 'shop'}")
    return _queue_name(route["queue"]) if route else None


def _queue_name(queue: Any) -> str:
    if isinstance(queue, str):
        return queue
    raise NotCovered(f"{queue!r} as a queue", "Pass the name of the queue, as text")


def kept_for(expires: Any) -> timedelta | float | None:
    """Return how long results are kept: `result_expires`, where 0 and None mean as long as the job."""
    return expires or None


def aware(app: Celery, when: Any) -> datetime:
    """Return an instant with a time zone: that of the app, if it has none. Accepts ISO text, as Celery does."""
    if isinstance(when, str):
        when = datetime.fromisoformat(when)
    if not isinstance(when, datetime):
        raise InvalidInput(f"{user_line()}: eta takes a datetime, not {when!r}; use countdown for seconds")
    return when if when.tzinfo is not None else when.replace(tzinfo=app.zone)


def _expires(app: Celery, expires: Any) -> float:
    if isinstance(expires, datetime | str):
        seconds = (aware(app, expires) - datetime.now(UTC)).total_seconds()
    else:
        seconds = _seconds(expires)
    return max(PASSED, seconds)


def _seconds(value: Any) -> float:
    return value.total_seconds() if isinstance(value, timedelta) else float(value)


def _first(value: Any, default: Any) -> Any:
    return default if value is None else value


def priority_order(app: Celery) -> brokers.PriorityOrder:
    """Return the meaning of priorities of an app: its setting, or that of its broker."""
    order: brokers.PriorityOrder | None = app.conf.millrace_priority_order
    return order or brokers.priority_order(app.broker())
