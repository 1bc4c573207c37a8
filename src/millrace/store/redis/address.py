"""The address of a Redis server, from a URL.

redis://user:password@host:6379/0             one server, or any node of a cluster
rediss://…?ca=/etc/ssl/ca.pem                 the same over TLS
valkey://…  valkeys://…                       other names for the two
redis+unix:///run/redis.sock?db=0             a socket on this machine
redis+sentinel://a:26379,b:26379/mymaster/0   the current master according to sentinels

Options: prefix, durability, replicas, patience, timeout, connections; over TLS ca, cert, key, verify.
"""

from __future__ import annotations

from typing import Any, cast
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit

import msgspec
from redis import connection as blocking
from redis.asyncio import BlockingConnectionPool, Redis, Sentinel
from redis.asyncio.connection import Connection, SSLConnection, UnixDomainSocketConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.retry import Retry as BlockingRetry

from millrace.domain.errors import InvalidInput
from millrace.store.redis.options import DURABILITY, RedisOptions

Place = tuple[str, int]  # host and port

_TLS = {"ca": "ssl_ca_certs", "cert": "ssl_certfile", "key": "ssl_keyfile", "verify": "ssl_cert_reqs"}
_TUNING = ("prefix", "durability", "replicas", "patience", "timeout", "connections")
_VERIFY = {"yes": "required", "no": "none"}


class RedisAddress(msgspec.Struct, frozen=True):
    """The parts of a parsed URL. `shown` is the URL without its password."""

    shown: str
    options: RedisOptions
    host: str = "localhost"
    port: int = 6379
    socket: str | None = None
    sentinels: tuple[Place, ...] = ()
    service: str = ""
    db: int = 0
    username: str | None = None
    password: str | None = None
    tls: dict[str, str] | None = None

    def __repr__(self) -> str:
        return f"Address({self.shown!r})"  # without the password

    @classmethod
    def parse(cls, url: str) -> RedisAddress:
        scheme, _, rest = url.partition("://")
        base, _, kind = scheme.lower().partition("+")
        secure = base in ("rediss", "valkeys")
        if base not in ("redis", "rediss", "valkey", "valkeys") or kind not in ("", "unix", "sentinel"):
            raise InvalidInput(
                f"{scheme}:// is not a Redis URL; use redis://, rediss://, redis+unix:// or redis+sentinel://"
            )
        parts = urlsplit("redis://" + rest)
        if "@" in parts.path + parts.query + parts.fragment:  # probably the end of an unescaped password
            raise InvalidInput("percent-encode /?#@ in the user and password of a URL: %2F, %3F, %23, %40")
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        known = (*_TUNING, *(_TLS if secure else ()), *(("db",) if kind == "unix" else ()))
        unknown = sorted(set(query) - set(known))
        if unknown:
            raise InvalidInput(f"{scheme}:// has no option {unknown[0]!r}; it takes {', '.join(known)}")
        common: dict[str, Any] = {
            "shown": _shown(scheme, parts),
            "options": _options(query),
            "username": unquote(parts.username) if parts.username else None,
            "password": unquote(parts.password) if parts.password else None,
            "tls": {_TLS[name]: _tls(name, query[name]) for name in _TLS if name in query} if secure else None,
        }
        if kind == "unix":
            return cls(**common, socket=unquote(parts.path), db=_number("db", query.get("db", "0")))
        if kind == "sentinel":
            return cls(**common, **_sentinel(parts))
        return cls(**common, host=parts.hostname or "localhost", port=_port(parts), db=_db(parts.path))

    def client(self, options: RedisOptions, place: Place | None = None) -> Redis:
        """Return a new client for the running event loop.

        `place` is the (host, port) of the cluster node to connect to; None means the server of the URL.
        """
        shared = {**self._settings(options), "retry": Retry(NoBackoff(), 0)}  # `wire` repeats calls itself
        if self.sentinels:
            if self.tls is not None:
                shared["ssl"] = True
            return cast(Redis, self._watched(min(options.timeout, 5.0)).master_for(self.service, **shared))
        pool_options: dict[str, Any] = {"max_connections": options.connections, "timeout": options.patience, **shared}
        if self.socket is not None:
            pool = BlockingConnectionPool(connection_class=UnixDomainSocketConnection, path=self.socket, **pool_options)
        else:
            host, port = self._node(place)
            kind = Connection if self.tls is None else SSLConnection
            pool = BlockingConnectionPool(connection_class=kind, host=host, port=port, **pool_options)
        return Redis.from_pool(pool)

    def blocking_connection(self, options: RedisOptions, place: Place | None = None) -> Any:
        """Return a connection of the client library for a thread without an event loop; None for sentinels."""
        if self.sentinels:
            return None
        shared = {**self._settings(options), "retry": BlockingRetry(NoBackoff(), 0)}
        if self.socket is not None:
            return cast(Any, blocking.UnixDomainSocketConnection)(path=self.socket, **shared)
        host, port = self._node(place)
        kind = blocking.Connection if self.tls is None else blocking.SSLConnection
        return kind(host=host, port=port, **shared)

    def _settings(self, options: RedisOptions) -> dict[str, Any]:
        return {
            "username": self.username,
            "password": self.password,
            "db": self.db,
            "socket_timeout": options.timeout,
            "socket_connect_timeout": min(options.timeout, 5.0),
            "protocol": 2,
            **(self.tls or {}),
        }

    def _node(self, place: Place | None) -> Place:
        host, port = place or (self.host, self.port)
        return host or self.host, port

    def _watched(self, timeout: float) -> Any:
        """Return a `Sentinel`, which finds the current master.

        If the URL has a password, the sentinels are asked first without the password and then with it, because some
        sentinels require the password and others reject it.
        """
        known: dict[str, Any] = {"socket_timeout": timeout, "retry": Retry(NoBackoff(), 0), "protocol": 2}
        if self.tls is not None:
            known |= {"ssl": True, **self.tls}
        watch = cast(Any, Sentinel)(list(self.sentinels), sentinel_kwargs=known)
        if self.password is not None:
            known = {**known, "password": self.password}
            watch.sentinels += cast(Any, Sentinel)(list(self.sentinels), sentinel_kwargs=known).sentinels
        return watch


async def close_client(client: Redis) -> None:
    """Close all connections of a client, including those to the sentinels."""
    await client.aclose()
    manager: Any = getattr(client.connection_pool, "sentinel_manager", None)
    for sentinel in () if manager is None else manager.sentinels:
        await sentinel.aclose()


def _shown(scheme: str, parts: SplitResult) -> str:
    place = parts.netloc.rpartition("@")[2]
    user = f"{quote(unquote(parts.username))}@" if parts.username else ""
    query = f"?{parts.query}" if parts.query else ""
    return f"{scheme}://{user}{place}{parts.path}{query}"


def _options(query: dict[str, str]) -> RedisOptions:
    wanted: dict[str, Any] = {name: query[name] for name in _TUNING if name in query}
    prefix = wanted.get("prefix", "millrace")
    if not prefix or "{" in prefix or "}" in prefix:
        raise InvalidInput(f"prefix must be text without braces, not {prefix!r}")
    level = wanted.get("durability", "relaxed")
    if level not in DURABILITY:
        raise InvalidInput(f"durability must be {' or '.join(DURABILITY)}, not {level!r}")
    try:
        options = msgspec.convert(wanted, RedisOptions, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"bad option in a Redis URL: {error}") from None
    for name in ("replicas", "patience", "timeout", "connections"):
        if getattr(options, name) <= 0:
            raise InvalidInput(f"{name} must be above 0, not {getattr(options, name)!r}")
    return options


def _tls(name: str, value: str) -> str:
    if name != "verify":
        return value
    if value not in _VERIFY:
        raise InvalidInput(f"verify must be yes or no, not {value!r}")
    return _VERIFY[value]


def _number(name: str, text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise InvalidInput(f"{name} in a Redis URL must be a number, not {text!r}")
    return int(text)


def _db(path: str) -> int:
    text = path.strip("/")
    return _number("the path, which names the database,", text) if text else 0


def _port(parts: SplitResult) -> int:
    try:
        return parts.port or 6379
    except ValueError:
        raise InvalidInput("the port in a Redis URL must be a number from 1 to 65535") from None


def _sentinel(parts: SplitResult) -> dict[str, Any]:
    service, _, db = parts.path.strip("/").partition("/")
    hosts = [place for place in parts.netloc.rpartition("@")[2].split(",") if place]
    if not service or not hosts:
        raise InvalidInput(
            "a sentinel URL needs hosts and a service: redis+sentinel://host:26379,host:26379/mymaster/0"
        )
    places: list[Place] = []
    for place in hosts:
        host, _, port = place.partition(":")
        places.append((host, _number("a sentinel's port", port or "26379")))
    return {"sentinels": tuple(places), "service": service, "db": _db(db)}
