"""The S3 server that every run of the tests starts."""

import os
import socket
import subprocess
import sys

import pytest

from tests.servers.ministack import running_ministack, server_from_environment
from tests.servers.ports import free_port

WHO_LISTENS = """
import sys
port = int(sys.argv[1])
for table in ("/proc/net/tcp", "/proc/net/tcp6"):
    for line in open(table).read().splitlines()[1:]:
        fields = line.split()
        address, _, number = fields[1].rpartition(":")
        if fields[3] == "0A" and int(number, 16) == port:
            print(address)
"""


def test_it_listens_on_the_loopback_interface_only_and_ends_with_its_session(tmp_path):
    with running_ministack(tmp_path) as server:
        port = int(server.endpoint.rpartition(":")[2])
        heard = subprocess.run(
            [sys.executable, "-c", WHO_LISTENS, str(port)], capture_output=True, text=True, check=True
        )
        assert heard.stdout.split() == ["0100007F"]

    with socket.socket() as knock:
        assert knock.connect_ex(("127.0.0.1", port)) != 0


def test_an_endpoint_in_the_environment_is_used_instead(monkeypatch):
    for name, value in {
        "S3_ENDPOINT": "http://127.0.0.1:9",
        "S3_BUCKET": "somebodys",
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "hush",
    }.items():
        monkeypatch.setenv(name, value)

    server = server_from_environment()

    assert server is not None and not server.ours
    address = server.address("x")
    assert (address.bucket, address.endpoint) == ("somebodys", "http://127.0.0.1:9")
    assert address.prefix.startswith("test-") and "hush" not in repr(server) + repr(address)


def test_a_named_endpoint_needs_a_named_bucket(monkeypatch):
    monkeypatch.setenv("S3_ENDPOINT", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    monkeypatch.delenv("S3_BUCKET", raising=False)

    with pytest.raises(KeyError, match="S3_BUCKET"):
        server_from_environment()
    assert "S3_BUCKET" not in os.environ
