"""Django's database as a store: the URL of the store for a database of the settings, and its open transaction."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, urlencode

from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from millrace.domain.errors import QueueError

_ELSEWHERE = "Name another store: TASKS = {…: {'OPTIONS': {'url': 'redis://…'}}}, or 'memory://' in tests"


def database_url(alias: str) -> str:
    """Return the URL of the store in a database of the settings. Raises ImproperlyConfigured if it cannot hold jobs."""
    connection = connections[alias]
    if connection.vendor == "sqlite":
        return _sqlite_url(alias, connection.settings_dict)
    if connection.vendor == "postgresql":
        return _postgres_url(connection.settings_dict)
    raise ImproperlyConfigured(f"the database {alias!r} is {connection.vendor}, which cannot hold jobs. {_ELSEWHERE}")


def open_transaction(alias: str) -> Any:
    """Return the driver's connection if a transaction of Django is open on this thread; otherwise None."""
    connection = connections[alias]
    return connection.connection if connection.in_atomic_block else None


def _sqlite_url(alias: str, settings: dict[str, Any]) -> str:
    path = str(settings["NAME"])
    if path == ":memory:" or "mode=memory" in path:
        raise ImproperlyConfigured(
            f"the database {alias!r} is an in-memory SQLite database, which other connections cannot open. {_ELSEWHERE}"
        )
    return f"sqlite:///{quote(path)}?shared=yes"


def _postgres_url(settings: dict[str, Any]) -> str:
    options = settings.get("OPTIONS") or {}
    if "service" in options:
        raise ImproperlyConfigured(
            "a database with 'service' in its OPTIONS has its address in a file of libpq. Write the store's URL into "
            "TASKS: 'OPTIONS': {'url': 'postgresql://…'}"
        )
    user, password, host, port, name = (
        str(settings.get(key) or "") for key in ("USER", "PASSWORD", "HOST", "PORT", "NAME")
    )
    login = quote(user, safe="") + (f":{quote(password, safe='')}" if password else "")
    query = {"sslmode": options["sslmode"]} if "sslmode" in options else {}
    if host.startswith("/"):  # the folder of a socket
        query["host"], host = host, ""
    place = f"{login}@" * bool(login) + host + f":{port}" * bool(port)
    return f"postgresql://{place}/{quote(name, safe='')}" + (f"?{urlencode(query)}" if query else "")


def can_hold_jobs(alias: str) -> bool:
    try:
        database_url(alias)
    except (ImproperlyConfigured, QueueError):
        return False
    return True
