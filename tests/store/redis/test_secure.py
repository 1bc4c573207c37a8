"""Over TLS, and with a password: what is right works throughout, what is wrong is said in words and without secrets."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from millrace import App
from millrace.domain.errors import StoreError
from millrace.store.redis import RedisStore
from millrace.testing.builders import a_spec
from tests.servers.redis_server import RedisServer, url_for
from tests.servers.tcp_proxy import tcp_proxy

PASSWORD = "s3cret/@"
ENCODED = "s3cret%2F%40"


def a_certificate(folder: Path, names: str) -> tuple[Path, ssl.SSLContext]:
    """One that signs itself, and a server's side of TLS with it."""
    openssl = shutil.which("openssl")
    assert openssl is not None, "these tests make a certificate: install openssl"
    certificate, key = folder / "cert.pem", folder / "key.pem"
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
    named = ("-subj", "/CN=millrace", "-addext", f"subjectAltName={names}")
    files = ("-keyout", str(key), "-out", str(certificate))
    subprocess.run([openssl, "req", "-x509", *curve, *named, *files], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return certificate, context


@pytest.fixture
async def secure(tmp_path: Path) -> AsyncIterator[tuple[str, Path]]:
    """A server behind TLS: its URL, and the certificate to trust."""
    certificate, context = a_certificate(tmp_path, "IP:127.0.0.1")
    async with tcp_proxy(url_for(tmp_path), tls=context) as (_, url):
        yield url.replace("redis://", "rediss://"), certificate


@pytest.mark.parametrize("trusted", [True, False])
async def test_an_app_runs_over_tls(secure, trusted: bool):
    """Calls, hints and answers: every connection is a secure one. Without verification only if one says so."""
    url, certificate = secure
    app = App(f"{url}&ca={certificate}" if trusted else f"{url}&verify=no")

    @app.task
    async def double(n: int) -> int:
        return 2 * n

    async with app, app.worker(slots=4):
        answers = await asyncio.gather(*(double.call(n=n) for n in range(10)))

    assert answers == [2 * n for n in range(10)]


async def test_a_certificate_that_nobody_vouches_for_is_refused(secure):
    store = RedisStore(secure[0])

    with pytest.raises(StoreError, match="certificate verify failed"):
        await store.connect()
    await store.close()


async def test_a_certificate_of_another_name_is_refused(tmp_path: Path):
    certificate, context = a_certificate(tmp_path, "DNS:elsewhere.example")
    async with tcp_proxy(url_for(tmp_path), tls=context) as (_, url):
        store = RedisStore(f"{url.replace('redis://', 'rediss://')}&ca={certificate}")

        with pytest.raises(StoreError, match=r"certificate verify failed.*127\.0\.0\.1"):
            await store.connect()
        await store.close()


async def test_a_plain_client_at_a_secure_server_is_told_so(secure):
    store = RedisStore(secure[0].replace("rediss://", "redis://") + "&patience=0.3")

    with pytest.raises(StoreError, match="could not be reached"):
        await store.connect()
    await store.close()


@pytest.fixture
def locked() -> Iterator[RedisServer]:
    server = RedisServer("--requirepass", PASSWORD)
    try:
        yield server.start()
    finally:
        server.close()


async def test_a_password_opens_the_server_and_is_never_shown(locked: RedisServer):
    place = f"127.0.0.1:{locked.port}/0"
    store = RedisStore(f"redis://:{ENCODED}@{place}")
    await store.connect()
    sleeper = asyncio.create_task(store.wait(["default"], None, 20.0))
    await asyncio.sleep(0.1)
    [answer] = await store.enqueue([a_spec()])
    await asyncio.wait_for(sleeper, 10.0)
    assert answer.status == "queued"
    assert store.url == f"redis://{place}"
    await store.close()

    for wrong in (f"redis://:wr0ng@{place}", f"redis://{place}"):
        stranger = RedisStore(wrong)
        with pytest.raises(StoreError, match="user and password") as caught:
            await stranger.enqueue([a_spec()])
        assert "wr0ng" not in str(caught.value)
        await stranger.close()
