"""The address of a Redis server, taken from an existing client of the program.

Only the client's settings are used: server, user, password or credential provider, TLS, sentinels. The store opens its
own connections with them, because a client belongs to one event loop, may decode replies, and may be closed by its
owner at any time. The store does not close the client.
"""

from __future__ import annotations

from typing import Any, cast

from redis.asyncio import BlockingConnectionPool, Redis, Sentinel
from redis.asyncio.connection import SSLConnection
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import SentinelConnectionPool
from redis.backoff import NoBackoff

from millrace.domain.errors import InvalidInput
from millrace.store.redis.address import Place
from millrace.store.redis.options import RedisOptions

# Settings that the store chooses itself, and those that the client library derives from them.
_OURS = frozenset(
    {
        *("protocol", "legacy_responses", "decode_responses", "encoding", "encoding_errors", "parser_class"),
        *("retry", "retry_on_error", "retry_on_timeout", "health_check_interval", "connection_pool"),
        *("socket_timeout", "socket_connect_timeout"),
    }
)
_DERIVED = ("maint_", "orig_", "himport_")


class ClientAddress:
    def __init__(self, client: Redis) -> None:
        if not isinstance(client, Redis):
            raise InvalidInput(
                f"client must be a redis.asyncio.Redis, not {type(client).__module__}.{type(client).__qualname__}. "
                "For any other client, pass the server's URL"
            )
        pool: Any = client.connection_pool
        self._class = pool.connection_class
        self._given = {
            name: value
            for name, value in pool.connection_kwargs.items()
            if name not in _OURS and not name.startswith(_DERIVED)
        }
        self._service = ""
        self._sentinels: list[tuple[str, int]] = []
        self._to_sentinels: dict[str, Any] = {}
        if isinstance(pool, SentinelConnectionPool):
            watch: Any = pool.sentinel_manager
            self._service, self._to_sentinels = cast(Any, pool).service_name, dict(watch.sentinel_kwargs)
            places = [sentinel.connection_pool.connection_kwargs for sentinel in watch.sentinels]
            self._sentinels = [(place["host"], place["port"]) for place in places]
        self.options = RedisOptions()
        self.shown = self._shown()

    def __repr__(self) -> str:
        return f"ClientAddress({self.shown!r})"

    def client(self, options: RedisOptions, place: Place | None = None) -> Redis:
        given = self._given | {
            "socket_timeout": options.timeout,
            "socket_connect_timeout": min(options.timeout, 5.0),
            "retry": Retry(NoBackoff(), 0),  # `wire` repeats calls itself
            "protocol": 2,
        }
        if self._service:
            quick: dict[str, Any] = {"socket_timeout": min(options.timeout, 5.0), "retry": Retry(NoBackoff(), 0)}
            watch = cast(Any, Sentinel)(self._sentinels, sentinel_kwargs=self._to_sentinels | quick)
            pool: Any = cast(Any, SentinelConnectionPool)(self._service, watch, connection_class=self._class, **given)
            return Redis.from_pool(pool)
        if place is not None:
            given |= {"host": place[0] or given["host"], "port": place[1]}
        return Redis.from_pool(
            BlockingConnectionPool(
                connection_class=self._class,
                max_connections=options.connections,
                timeout=options.patience,
                **given,
            )
        )

    def blocking_connection(self, options: RedisOptions, place: Place | None = None) -> Any:
        """Return None: the settings of the client are for connections of an event loop."""
        return None

    def _shown(self) -> str:
        db = self._given.get("db") or 0
        base = "rediss" if issubclass(self._class, SSLConnection) else "redis"
        if self._service:
            places = ",".join(f"{host}:{port}" for host, port in self._sentinels)
            return f"{base}+sentinel://{places}/{self._service}/{db}"
        if "path" in self._given:
            return f"{base}+unix://{self._given['path']}?db={db}"
        return f"{base}://{self._given.get('host', 'localhost')}:{self._given.get('port', 6379)}/{db}"
