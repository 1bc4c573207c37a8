"""Redis URLs: what they may say, and that no password ever shows (X2)."""

from __future__ import annotations

import pytest
from redis.asyncio.connection import SSLConnection, UnixDomainSocketConnection
from redis.asyncio.sentinel import SentinelConnectionPool

from millrace.domain.errors import InvalidInput
from millrace.store.connect import connect
from millrace.store.redis import RedisStore
from millrace.store.redis.address import RedisAddress
from tests.narrowing import checked_cast


@pytest.mark.parametrize("scheme", ["redis", "valkey", "rediss", "valkeys"])
def test_a_url_names_server_database_and_user(scheme):
    found = RedisAddress.parse(f"{scheme}://ada:s3%2Fcret@h:7000/3?prefix=shop&durability=disk&timeout=2.5")

    assert (found.host, found.port, found.db) == ("h", 7000, 3)
    assert (found.username, found.password) == ("ada", "s3/cret")
    assert (found.options.prefix, found.options.durability, found.options.timeout) == ("shop", "disk", 2.5)
    assert "s3/cret" not in repr(found)
    assert found.shown == f"{scheme}://ada@h:7000/3?prefix=shop&durability=disk&timeout=2.5"
    assert (found.tls is not None) == (scheme in ("rediss", "valkeys"))


def test_what_is_not_said_is_usual():
    found = RedisAddress.parse("redis://")

    assert (found.host, found.port, found.db, found.username, found.password) == ("localhost", 6379, 0, None, None)
    assert (found.options.prefix, found.options.durability) == ("millrace", "relaxed")


async def test_tls_sockets_and_sentinels_have_connections_of_their_own():
    secure = RedisAddress.parse("rediss://h/0?ca=/etc/ca.pem&verify=no")
    local = RedisAddress.parse("redis+unix:///run/redis.sock?db=2")
    watched = RedisAddress.parse("redis+sentinel://:pw@a:26379,b/mymaster/1")

    assert secure.client(secure.options).connection_pool.connection_class is SSLConnection
    assert secure.tls == {"ssl_ca_certs": "/etc/ca.pem", "ssl_cert_reqs": "none"}
    assert local.client(local.options).connection_pool.connection_class is UnixDomainSocketConnection
    assert (local.socket, local.db) == ("/run/redis.sock", 2)
    assert (watched.sentinels, watched.service, watched.db) == ((("a", 26379), ("b", 26379)), "mymaster", 1)
    assert isinstance(watched.client(watched.options).connection_pool, SentinelConnectionPool)


async def test_sentinels_are_reached_as_the_server_is():
    """Over TLS where it is, and with its password or without one, since one that has none refuses any."""
    watched = RedisAddress.parse("rediss+sentinel://ada:pw@a:26379,b/mymaster?ca=/etc/ca.pem")
    watching = checked_cast(SentinelConnectionPool, watched.client(watched.options).connection_pool)
    pools = [client.connection_pool for client in watching.sentinel_manager.sentinels]

    assert {pool.connection_class for pool in pools} == {SSLConnection}
    known = [pool.connection_kwargs for pool in pools]
    assert [(of["host"], of["password"], of["ssl_ca_certs"]) for of in known] == [
        ("a", None, "/etc/ca.pem"),
        ("b", None, "/etc/ca.pem"),
        ("a", "pw", "/etc/ca.pem"),
        ("b", "pw", "/etc/ca.pem"),
    ]


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("redis://:s3cret@h/x", "a number, not 'x'"),
        ("redis://:s3cret@h:port/0", "port"),
        ("redis://:s3cret@h/0?durabilty=disk", "no option 'durabilty'"),
        ("redis://:s3cret@h/0?durability=full", "relaxed or disk or replicated, not 'full'"),
        ("redis://:s3cret@h/0?prefix=a{b}", "without braces"),
        ("redis://:s3cret@h/0?prefix=", "without braces"),
        ("redis://:s3cret@h/0?replicas=0", "above 0"),
        ("redis://:s3cret@h/0?timeout=soon", "timeout"),
        ("redis://:s3cret@h/0?ca=/etc/ca.pem", "no option 'ca'"),
        ("rediss://:s3cret@h/0?verify=maybe", "yes or no"),
        ("redis://:s3cret/s3cret@h/0", "percent-encode"),
        ("redis://:s3cret?s3cret@h/0", "percent-encode"),
        ("redis+sentinel://:s3cret@h:26379", "needs hosts and a service"),
        ("redis+sentinel://:s3cret@h:x/m", "a number, not 'x'"),
    ],
)
def test_a_slip_is_told_without_the_password(url, told):
    with pytest.raises(InvalidInput, match=told) as caught:
        connect(url)

    assert "s3cret" not in str(caught.value)


def test_connect_makes_the_store():
    store = connect("valkey://:s3cret@h/0?prefix=shop")

    assert isinstance(store, RedisStore)
    assert store.url == "valkey://h/0?prefix=shop"
    assert "crash of the server" in store.durability
