"""From the URL of a Celery broker to the URL of a store, and from Celery's priorities to those of Millrace."""

from __future__ import annotations

from typing import Literal
from urllib.parse import parse_qsl, urlencode, urlsplit

from millrace.contrib.celery.exceptions import NotCovered
from millrace.domain.errors import InvalidInput
from millrace.store.connect import REDIS

PriorityOrder = Literal["lower_first", "higher_first"]

LOWEST, HIGHEST = 0, 15  # priorities of Millrace
REDIS_LOWEST = 9  # Celery on Redis: 0 runs first, 9 last

_SAME = frozenset({"memory", "sqlite", "postgresql", "postgres", "file", "s3", *REDIS})
_SQLALCHEMY = ("sqla", "sqlalchemy", "db")
_RESULTS_ONLY = ("rpc", "cache", "cache+memory")

_INSTEAD = {
    "amqp": "RabbitMQ is not a store of Millrace",
    "pyamqp": "RabbitMQ is not a store of Millrace",
    "librabbitmq": "RabbitMQ is not a store of Millrace",
    "sqs": "SQS is not a store of Millrace; with s3://bucket/prefix, a bucket is one",
    "filesystem": "Write file:///var/lib/jobs for a directory",
}


def store_url(broker: str) -> str:
    """Return the URL of the store that takes the place of a broker. Raises NotCovered if there is none."""
    scheme, separator, rest = broker.partition("://")
    scheme = scheme.lower()
    if not separator:
        raise InvalidInput(f"broker={broker!r} is not a URL; write one such as redis://localhost:6379/0")
    if scheme == "sentinel":
        return _sentinel(broker)
    if scheme == "redis+socket":
        return _socket(rest)
    base, _, dialect = scheme.partition("+")
    if base in _SQLALCHEMY and dialect:
        return _database(dialect.partition("+")[0], rest, scheme)
    if scheme in _SAME:
        return broker
    why = _INSTEAD.get(scheme, f"Millrace has no store for {scheme}://")
    raise NotCovered(f"the broker {scheme}://", f"{why}. {_CHANGE}")


_CHANGE = "Change broker=… to redis://…, postgresql://… or sqlite:///jobs.db"


def check_backend(backend: str) -> None:
    """Raise NotCovered for a result backend that has no store. Results are kept in the store of the jobs."""
    scheme = backend.partition("://")[0].lower()
    if scheme in _RESULTS_ONLY:
        return
    try:
        store_url(backend)
    except InvalidInput:
        raise NotCovered(
            f"the result backend {scheme}://", "Remove backend=…: each result is kept with its job, in the store"
        ) from None


def priority_order(broker: str) -> PriorityOrder:
    """Return the meaning of priorities: with Celery on Redis, lower numbers run first; on RabbitMQ, higher ones."""
    return "lower_first" if store_url(broker).startswith(("redis", "valkey")) else "higher_first"


def priority(number: int | None, order: PriorityOrder) -> int:
    """Return the priority of a job, 0 to 15, higher first. Celery treats a task without a priority as one with 0."""
    number = 0 if number is None else number
    most = REDIS_LOWEST if order == "lower_first" else HIGHEST
    if not 0 <= number <= most:
        what = "0 runs first, as with Celery on Redis" if order == "lower_first" else "higher ones run first"
        raise InvalidInput(
            f"priority={number!r}: a priority is a whole number from 0 to {most}, and {what}. "
            "To change the order: app.conf.millrace_priority_order = 'lower_first' or 'higher_first'"
        )
    return REDIS_LOWEST - number if order == "lower_first" else number


def _database(dialect: str, rest: str, scheme: str) -> str:
    if dialect == "sqlite":
        return f"sqlite://{rest}"
    if dialect in ("postgresql", "postgres"):
        return f"postgresql://{rest}"
    raise NotCovered(f"the broker {scheme}://", f"Millrace has no store for {dialect}. {_CHANGE}")


def _socket(rest: str) -> str:
    parts = urlsplit("redis://" + rest)
    query = {"db": "0", **dict(parse_qsl(parts.query))}
    query["db"] = query.pop("virtual_host", query["db"])
    return f"redis+unix://{parts.netloc}{parts.path}?{urlencode(query)}"


def _sentinel(broker: str) -> str:
    raise NotCovered(
        "the broker sentinel://",
        "Its URL does not name the service. Change broker=… to redis+sentinel://host:26379,host:26379/SERVICE/0, and "
        "remove master_name from broker_transport_options",
    )
