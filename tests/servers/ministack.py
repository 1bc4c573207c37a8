"""An S3 server for tests: MiniStack from its wheel, or the one that the environment names.

Without S3_ENDPOINT a server is started on the loopback interface, once per session, and stopped by its own process id.
With it nothing is started: the bucket S3_BUCKET is used under a random prefix, and nothing else is touched.
"""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from millrace.store.object.s3 import BucketAddress
from tests.servers.ports import free_port

START_LIMIT = 120.0


@dataclass(frozen=True)
class S3Server:
    endpoint: str
    access_key: str = field(repr=False)
    secret_key: str = field(repr=False)
    region: str = "us-east-1"
    session_token: str | None = field(default=None, repr=False)
    given_bucket: str | None = None
    scope: str = field(default_factory=lambda: f"test-{secrets.token_hex(6)}")

    @property
    def ours(self) -> bool:
        """Whether we may make buckets and change their settings."""
        return self.given_bucket is None

    def address(self, prefix: str, *, bucket: str = "millrace-versioned", endpoint: str | None = None) -> BucketAddress:
        return BucketAddress(
            bucket=self.given_bucket or bucket,
            prefix=f"{self.scope}/{prefix}/",
            endpoint=endpoint or self.endpoint,
            region=self.region,
            versioning="optional",
            access_key=self.access_key,
            secret_key=self.secret_key,
            session_token=self.session_token,
        )


@contextmanager
def running_ministack(folder: Path) -> Iterator[S3Server]:
    port = free_port()
    environment = {**os.environ, "BIND_HOST": "127.0.0.1", "GATEWAY_PORT": str(port), "LOG_LEVEL": "ERROR"}
    with subprocess.Popen(
        [sys.executable, "-m", "ministack"],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            _await_port(port, process)
            yield S3Server(f"http://127.0.0.1:{port}", "test", "test")
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


def _await_port(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_LIMIT
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"MiniStack ended at once with code {process.returncode}")
        with socket.socket() as knock:
            knock.settimeout(1)
            if knock.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise RuntimeError(f"MiniStack did not answer on port {port} within {START_LIMIT:g} s")


def server_from_environment() -> S3Server | None:
    endpoint = os.environ.get("S3_ENDPOINT")
    if not endpoint:
        return None
    return S3Server(
        endpoint=endpoint,
        access_key=os.environ["AWS_ACCESS_KEY_ID"],
        secret_key=os.environ["AWS_SECRET_ACCESS_KEY"],
        region=os.environ.get("AWS_REGION", "us-east-1"),
        session_token=os.environ.get("AWS_SESSION_TOKEN"),
        given_bucket=os.environ["S3_BUCKET"],
    )


@pytest.fixture(scope="session")
def ministack_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """Always one of our own: it checks no signatures, so a proxy may tamper with requests."""
    with running_ministack(tmp_path_factory.mktemp("ministack")) as server:
        yield server


@pytest.fixture(scope="session")
def s3_server(request: pytest.FixtureRequest) -> Iterator[S3Server]:
    """The server under test."""
    given = server_from_environment()
    if given is None:
        yield request.getfixturevalue("ministack_server")
        return
    yield given
    _remove_scope(given)


def _remove_scope(server: S3Server) -> None:
    from obstore.store import S3Store

    address = server.address("x")
    store = S3Store(
        address.bucket,
        endpoint=server.endpoint,
        region=server.region,
        access_key_id=server.access_key,
        secret_access_key=server.secret_key,
        virtual_hosted_style_request=False,
        client_options={"allow_http": True},
    )
    for chunk in store.list(server.scope):
        store.delete([item["path"] for item in chunk])
