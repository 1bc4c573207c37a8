"""Creates a store from a URL. A backend is imported only when a URL needs it.

memory://                   in this process; every use of memory://name in the process is the same store
sqlite:///jobs.db           a file, relative to the working directory
sqlite:////var/lib/jobs.db  a file, absolute
file:///var/lib/jobs        a directory of objects
postgresql://host/database  the schema millrace in a PostgreSQL database; ?schema=name for another one
s3://bucket/prefix          a bucket; ?endpoint=http://host:port for a server other than AWS
redis://host:6379/0         a Redis or Valkey server; also rediss://, valkey://, redis+unix:// and redis+sentinel://

Every URL takes ?access=read: such a store writes nothing, and needs no permission to write.
Other packages can add schemes by entry points of the group `millrace.stores`: see `registered`.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from millrace.domain.errors import InvalidInput, MissingDriver, StoreError
from millrace.store.clock import Clock, system_clock
from millrace.store.forks import hold_over_forks
from millrace.store.protocol import Store
from millrace.store.read_access import split_access

if TYPE_CHECKING:
    from millrace.store.memory import MemoryStore

GROUP = "millrace.stores"  # the group of entry points
SCHEMES = ("memory", "sqlite", "postgresql", "redis", "file", "s3")
REDIS = frozenset(
    f"{base}{kind}" for base in ("redis", "rediss", "valkey", "valkeys") for kind in ("", "+unix", "+sentinel")
)
_DURABILITY = ("full", "relaxed")

_named: dict[str, MemoryStore] = {}
_named_lock = threading.Lock()
hold_over_forks(_named_lock)


def connect(url: str, *, clock: Clock | None = None, env: Mapping[str, str] | None = None) -> Store:
    """Return the store for a URL, not connected yet. Error messages name the scheme or the option, but never a
    password.

    Some stores read further settings from environment variables. `env` replaces these variables.
    """
    plain, reads = split_access(url)
    store = _connect(plain, clock, env)
    return store.for_reading() if reads else store


def _connect(url: str, clock: Clock | None, env: Mapping[str, str] | None) -> Store:
    scheme, separator, _ = url.partition("://")
    scheme = scheme.lower()
    if not separator:
        raise InvalidInput("a store needs a URL such as 'sqlite:///jobs.db' or 'memory://', not a path")
    if scheme == "memory":
        return _memory(urlsplit(url), clock)
    if scheme == "sqlite":
        return _sqlite(urlsplit(url), clock)
    if scheme in ("postgresql", "postgres"):
        return _postgres(url, clock)
    if scheme == "file":
        return _directory(urlsplit(url), clock, env)
    if scheme == "s3":
        return _bucket(url, clock, env)
    if scheme in REDIS:
        return _redis(url, clock)
    return registered(scheme, url)


def registered(scheme: str, url: str) -> Store:
    """Return a store of another package. The entry point with the name `scheme` creates it."""
    from importlib.metadata import entry_points

    others = entry_points(group=GROUP)
    found = [point for point in others if point.name.lower() == scheme]
    if not found:
        known = [*SCHEMES, *sorted({point.name for point in others})]
        raise InvalidInput(f"there is no store for {scheme}://; known ones are {_list([f'{one}://' for one in known])}")
    if len({point.value for point in found}) > 1:
        packages = sorted(point.dist.name if point.dist else point.value for point in found)
        raise InvalidInput(f"{scheme}:// is claimed by several packages: {', '.join(packages)}. Uninstall all but one")
    try:
        make = found[0].load()
    except Exception as error:  # the import of another package may raise anything
        raise StoreError(f"the store for {scheme}:// ({found[0].value}) cannot be imported: {error!r}") from error
    store = make(url)
    if not isinstance(store, Store):
        raise StoreError(f"{found[0].value}, which is registered for {scheme}://, made {store!r}, which is not a Store")
    return store


def _memory(parts: SplitResult, clock: Clock | None) -> Store:
    from millrace.store.memory import MemoryStore

    _options(parts, ())
    name = (parts.netloc + parts.path).strip("/")
    if not name:
        return MemoryStore(clock=clock or system_clock)
    with _named_lock:
        known = _named.get(name)
        if known is None or clock is not None:
            known = _named[name] = MemoryStore(f"memory://{name}", clock=clock or system_clock)
        return known


def _sqlite(parts: SplitResult, clock: Clock | None) -> Store:
    options = _options(parts, ("durability", "shared"))
    if parts.netloc:
        raise InvalidInput(
            "a SQLite URL has three slashes before a relative path and four before an absolute one: "
            f"sqlite:///{parts.hostname or 'jobs.db'} or sqlite:////var/lib/jobs.db"
        )
    path = unquote(parts.path.removeprefix("/"))
    if path in ("", ":memory:"):
        raise InvalidInput(
            "a SQLite store needs a file, because several connections share it: sqlite:///jobs.db. "
            "For a store inside this process only, use memory://"
        )
    level = options.get("durability", "full")
    if level not in _DURABILITY:
        raise InvalidInput(f"durability is {_list(_DURABILITY)}, not {level!r}")
    shared = options.get("shared", "no")
    if shared not in ("yes", "no"):
        raise InvalidInput(f"shared is yes or no, not {shared!r}")
    from millrace.store.sqlite import SqliteStore

    said = [f"durability={level}"] * (level != "full") + ["shared=yes"] * (shared == "yes")
    suffix = "?" + "&".join(said) if said else ""
    return SqliteStore(
        path,
        url=f"sqlite:///{path}{suffix}",
        durability="relaxed" if level == "relaxed" else "full",
        shared=shared == "yes",
        clock=clock or system_clock,
    )


def _postgres(url: str, clock: Clock | None) -> Store:
    _need("asyncpg", "postgresql", "postgres")
    from millrace.store.postgres import PostgresStore

    return PostgresStore(url, clock=clock)


def _directory(parts: SplitResult, clock: Clock | None, env: Mapping[str, str] | None) -> Store:
    options = _options(parts, ("durability",))
    path = unquote(parts.path)
    if parts.netloc or path in ("", "/"):
        raise InvalidInput("a directory needs an absolute path after file://, such as file:///var/lib/jobs")
    level = options.get("durability", "full")
    if level not in _DURABILITY:
        raise InvalidInput(f"durability is {_list(_DURABILITY)}, not {level!r}")
    from millrace.store.object.opening import open_directory

    return open_directory(path, "relaxed" if level == "relaxed" else "full", clock, env)


def _bucket(url: str, clock: Clock | None, env: Mapping[str, str] | None) -> Store:
    _need("obstore", "s3", "s3")
    from millrace.store.object.opening import open_bucket

    return open_bucket(url, clock, env)


def _redis(url: str, clock: Clock | None) -> Store:
    _need("redis", "redis", "redis")
    from millrace.store.redis import RedisStore

    return RedisStore(url, clock=clock)


def _need(driver: str, scheme: str, extra: str) -> None:
    from importlib.util import find_spec

    try:
        there = find_spec(driver) is not None
    except ValueError:  # another object is in sys.modules under this name
        there = False
    if not there:
        raise MissingDriver(scheme, extra)


def _options(parts: SplitResult, known: tuple[str, ...]) -> dict[str, str]:
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    unknown = sorted(set(options) - set(known))
    if unknown:
        takes = f"it takes {_list(known)}" if known else "it takes none"
        raise InvalidInput(f"{parts.scheme}:// has no option {unknown[0]!r}; {takes}")
    return options


def _list(names: tuple[str, ...] | list[str]) -> str:
    return " or ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
