"""The plan of a drain, which the driver sends to Spark's processes, and the rows that these processes return."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from millrace.app.duration import milliseconds, optional_milliseconds
from millrace.app.settings import masked
from millrace.app.spark_drain import DrainWorker, Until
from millrace.domain.errors import InvalidInput
from millrace.domain.rules.check import check_name
from millrace.spark.drain.app import AppAddress

if TYPE_CHECKING:
    from millrace.app.app import App

SLOTS = 10
PATIENCE = 60
GRACE = 25
OUTCOME = (
    "partition int not null, attempt int not null, worker string not null, host string not null, pid int not null, "
    "claimed long not null, completed long not null, retried long not null, dead long not null, "
    "snoozed long not null, released long not null, cancelled long not null, lost long not null, "
    "reaped long not null, seconds double not null, ended string not null, refused string"
)


class DrainPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a drain runs, and how. Durations are in milliseconds. `store` holds the store's URL, or the environment
    variable or file that has the URL.
    """

    drain: str
    address: AppAddress
    store: Mapping[str, str | None]  # url, urlEnv, urlFile
    queues: tuple[str, ...]
    tasks: tuple[str, ...]
    partitions: int
    slots: int = SLOTS
    processes: int = 1
    max_jobs: int | None = None
    until: Until = "empty"
    patience: int = PATIENCE * 1000
    lease: int | None = None
    grace: int = GRACE * 1000

    def share(self, partition: int) -> int | None:
        """Return how many of `max_jobs` this partition may claim; None for no limit."""
        if self.max_jobs is None:
            return None
        return self.max_jobs // self.partitions + (partition < self.max_jobs % self.partitions)


def read_plan(app: App, options: Mapping[str, Any], address: AppAddress, partitions: int) -> DrainPlan:
    wanted = options.get("tasks")
    named = [one if isinstance(one, str) else one.name for one in wanted] if wanted is not None else sorted(app.tasks)
    tasks = tuple(app.find_task(name).name for name in named)
    if not tasks:
        raise InvalidInput("this app has no tasks, so there is nothing to run. Register some with @app.task")
    until = options.get("until", "empty")
    if until not in ("empty", "stopped"):
        raise InvalidInput(f'a drain ends until="empty" or until="stopped", not {until!r}')
    return DrainPlan(
        drain=f"drain-{secrets.token_hex(4)}",
        address=address,
        store=store_of(app, options),
        queues=_queues(app, options.get("queues"), tasks),
        tasks=tasks,
        partitions=partitions,
        slots=_whole("slots", options.get("slots", SLOTS)),
        processes=_whole("processes", options.get("processes", 1)),
        max_jobs=_optional_whole("max_jobs", options.get("max_jobs")),
        until=until,
        patience=milliseconds("patience", options.get("patience", PATIENCE)),
        lease=optional_milliseconds("lease", options.get("lease")),
        grace=milliseconds("grace", options.get("grace", GRACE)),
    )


def store_of(app: App, options: Mapping[str, Any]) -> dict[str, str | None]:
    """Return how executors find the store: by the option that was given, or else by the app's own URL. Raises
    InvalidInput if more than one option was given, or if the option `url` contains a secret.
    """
    given = {"url": options.get("url"), "urlEnv": options.get("url_env"), "urlFile": options.get("url_file")}
    named = [name for name, value in given.items() if value is not None]
    if len(named) > 1:
        raise InvalidInput(f"name the store by one of url, url_env and url_file, not by {' and '.join(named)} together")
    if not named:
        from millrace.spark.open import absolute_url

        return {**given, "url": absolute_url(app.store.url)}
    url = given["url"]
    if url is not None and masked(url) != url:
        raise InvalidInput(
            f"there is a secret in the url ({masked(url)}), and it would be sent with the plan. Put the URL into an "
            "environment variable or a file that executors can read, and name that by url_env or url_file"
        )
    return given


def _queues(app: App, queues: Any, tasks: tuple[str, ...]) -> tuple[str, ...]:
    if queues is None:
        return tuple(sorted({app.tasks[name].options.queue for name in tasks}))
    names = (queues,) if isinstance(queues, str) else tuple(dict.fromkeys(queues))
    for name in names:
        check_name("queue", name)
    if not names:
        raise InvalidInput("a drain needs a queue: name one, or leave `queues` out to serve those of the app's tasks")
    return names


def _whole(name: str, value: Any) -> int:
    if type(value) is not int or value < 1:
        raise InvalidInput(f"{name} must be a whole number from 1 up, not {value!r}")
    return value


def _optional_whole(name: str, value: Any) -> int | None:
    return None if value is None else _whole(name, value)


def worker_of(row: Any) -> DrainWorker:
    return msgspec.convert(row.asDict(), DrainWorker)
