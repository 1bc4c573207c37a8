"""A client that the program has already: its settings are used, and it stays its owner's."""

from __future__ import annotations

from pathlib import Path

import pytest
from redis import Redis as BlockingRedis
from redis.asyncio import Redis, Sentinel

from millrace import App, InvalidInput
from millrace.store.redis import RedisOptions, RedisStore
from tests.servers.redis_server import RedisServer, shared_url, url_for


def options(tmp_path: Path) -> RedisOptions:
    return RedisOptions(prefix=url_for(tmp_path).partition("prefix=")[2])


@pytest.mark.parametrize("more", [{}, {"decode_responses": True, "protocol": 3, "socket_timeout": 0.001}])
async def test_a_store_works_with_the_settings_of_a_client_and_leaves_it_open(tmp_path: Path, more: dict[str, object]):
    """Whatever the client is set to do with answers."""
    client = Redis.from_url(shared_url(), **more)  # type: ignore[arg-type]
    app = App(RedisStore(client=client, options=options(tmp_path)))

    @app.task
    async def double(n: int) -> int:
        return 2 * n

    async with app, app.worker():
        assert await double.call(n=2) == 4

    client.connection_pool.connection_kwargs["socket_timeout"] = 5.0
    assert await client.ping()
    await client.aclose()


async def test_the_client_may_be_closed_first(tmp_path: Path):
    client = Redis.from_url(shared_url())
    store = RedisStore(client=client, options=options(tmp_path))
    await client.aclose()

    await store.connect()
    assert await store.count() == []
    await store.close()


async def test_user_and_password_come_from_the_client_and_are_not_shown():
    server = RedisServer("--requirepass", "s3cret").start()
    try:
        client = Redis(port=server.port, password="s3cret")
        store = RedisStore(client=client)
        await store.connect()
        assert store.url == f"redis://localhost:{server.port}/0"
        assert "s3cret" not in repr(store._address)
        await store.close()
        await client.aclose()
    finally:
        server.close()


@pytest.mark.parametrize(
    ("client", "url"),
    [
        (Redis(host="a", port=1, db=2, ssl=True), "rediss://a:1/2"),
        (Redis(unix_socket_path="/run/r.sock", db=3), "redis+unix:///run/r.sock?db=3"),
        (Sentinel([("a", 1), ("b", 2)]).master_for("mymaster", db=4), "redis+sentinel://a:1,b:2/mymaster/4"),
    ],
)
async def test_any_kind_of_client_is_understood(client: Redis, url: str):
    store = RedisStore(client=client)

    assert store.url == url
    made = store._address.client(store.options)
    assert made.connection_pool is not client.connection_pool
    assert made.connection_pool.connection_class is client.connection_pool.connection_class


def test_a_client_that_blocks_is_refused():
    with pytest.raises(InvalidInput, match=r"must be a redis.asyncio.Redis, not redis\.client\.Redis"):
        RedisStore(client=BlockingRedis())  # type: ignore[arg-type]
