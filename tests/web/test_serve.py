"""`millrace serve` as a process: it answers over a socket, closes its doors, and ends when it is told to."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from millrace import App
from tests.cli.stage import Stage
from tests.servers.ports import free_port
from tests.web.stage import TOKENS, bearer

PATIENCE = 120.0  # seconds: it only ends a wait for something that never comes
IN_TIME = 40.0  # seconds: less than a stream or a wait takes that nobody ends
ADMIN = {"MILLRACE_ADMIN_TOKEN": TOKENS["admin"]}


BY_UVICORN = """
import sys, uvicorn
from millrace.web import application
from starlette.applications import Starlette
from starlette.routing import Mount
url, port, place = sys.argv[1:]
served = application(url)
uvicorn.run(Starlette(routes=[Mount(place, served)]) if place else served, port=int(port), log_level="error")
"""


@contextmanager
def served(
    folder: Path, *arguments: str, mounted: str | None = None, **variables: str
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """By `millrace serve`; or with `mounted` by uvicorn itself, at that place of another app, or alone."""
    port = free_port()
    env = {name: value for name, value in os.environ.items() if not name.startswith("MILLRACE_")}
    env |= {"MILLRACE_URL": f"sqlite:///{folder}/jobs.db", **variables}
    with App(env["MILLRACE_URL"]).sync:
        pass  # now there is a store to serve
    command = [sys.executable, "-m", "millrace", "serve", "--port", str(port), *arguments]
    if mounted is not None:
        command = [sys.executable, "-c", BY_UVICORN, env["MILLRACE_URL"], str(port), mounted]
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        url = f"http://127.0.0.1:{port}{mounted or ''}"
        until = time.monotonic() + PATIENCE
        while not _answers(url):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < until, "it did not start"
            time.sleep(0.05)
        yield url, process
    finally:
        process.kill()
        process.communicate(timeout=PATIENCE)


def _answers(url: str) -> bool:
    try:
        ask("GET", f"{url}/health")
    except httpx.TransportError:
        return False
    return True


def ask(method: str, url: str, **more: Any) -> httpx.Response:
    """With more patience than httpx has by default, which a busy machine may exceed."""
    return httpx.request(method, url, timeout=PATIENCE, **more)


def test_it_serves_a_store_and_ends_in_time_although_somebody_still_listens(tmp_path: Path):
    audit = tmp_path / "audit.jsonl"
    with served(tmp_path, "--audit", str(audit)) as (url, process):
        made = ask("POST", f"{url}/api/jobs", json={"task": "pack", "id": "a/b"}, headers={"origin": url})
        assert made.status_code == 201
        assert ask("GET", f"{url}/api/jobs/a%2Fb").json()["id"] == "a/b"
        assert ask("POST", f"{url}/api/jobs", json={"task": "pack"}).status_code == 403
        assert ask("GET", f"{url}/health", headers={"host": "evil.example"}).status_code == 421
        assert "server" not in ask("GET", f"{url}/health").headers
        with httpx.stream("GET", f"{url}/api/events/stream", timeout=PATIENCE) as stream:
            lines = stream.iter_lines()
            assert next(lines).startswith("retry:")
            process.send_signal(signal.SIGTERM)
            assert process.wait(IN_TIME) in (0, -signal.SIGTERM, 128 + signal.SIGTERM)
        assert [line.count('"enqueueJob"') for line in audit.read_text().splitlines()] == [1, 1]


@pytest.mark.parametrize("place", ["", "/jobs"])
def test_run_by_uvicorn_it_ends_when_told_to_although_somebody_still_listens_or_waits(tmp_path: Path, place: str):
    """uvicorn waits for all requests to end, for as long as they like, and tells them nothing."""
    with served(tmp_path, mounted=place) as (url, process), ThreadPoolExecutor(1) as beside:
        origin = {"origin": url.removesuffix(place)}
        with httpx.stream("GET", f"{url}/api/events/stream", timeout=PATIENCE) as stream:
            lines = stream.iter_lines()
            assert next(lines).startswith("retry:")
            body = {"task": "pack", "id": "j"}
            waits = beside.submit(ask, "POST", f"{url}/api/jobs?wait=60", json=body, headers=origin)
            while not any('"job":"j"' in line for line in lines):
                pass
            process.send_signal(signal.SIGTERM)
            process.wait(IN_TIME)
        assert waits.result().json()["outcome"]["finished"] is False


def test_with_a_token_everything_but_health_asks_for_it(tmp_path: Path):
    with served(tmp_path, **ADMIN) as (url, _):
        assert ask("GET", f"{url}/api/jobs").status_code == 401
        assert ask("GET", f"{url}/metrics").status_code == 401
        assert ask("GET", f"{url}/api/jobs", headers=bearer("admin")).status_code == 200
        assert ask("GET", f"{url}/health").status_code == 200


def test_read_only_is(tmp_path: Path):
    with served(tmp_path, "--read-only") as (url, _):
        assert ask("GET", f"{url}/api/me").json()["role"] == "viewer"
        made = ask("POST", f"{url}/api/jobs", json={"task": "pack"}, headers={"origin": url})
        assert made.status_code == 403


def test_without_a_token_it_listens_on_this_machine_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.chdir(tmp_path)
    cli = Stage(monkeypatch)
    cli("init", "--url", "sqlite:///jobs.db")
    for host in ("0.0.0.0", "::", "example.com", "192.168.1.7"):
        refused = cli.refused("serve", "--url", "sqlite:///jobs.db", "--host", host)
        assert refused.code == 2 and "MILLRACE_ADMIN_TOKEN" in refused.err


def test_a_dry_run_says_what_would_be(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.chdir(tmp_path)
    cli = Stage(monkeypatch)
    cli("init", "--url", "sqlite:///jobs.db")
    at = ("serve", "--dry-run", "--url", "sqlite:///jobs.db", "--port", "8999", "--json")
    assert cli(*at).json == {"store": "sqlite:///jobs.db", "url": "http://127.0.0.1:8999", "tokens": []}
    monkeypatch.setenv("MILLRACE_VIEWER_TOKEN", TOKENS["viewer"])
    assert cli(*at, "--host", "0.0.0.0").json["tokens"] == ["viewer"]
    monkeypatch.setenv("MILLRACE_VIEWER_TOKEN", "short")
    refused = cli.refused(*at)
    assert refused.code == 2 and "short" not in refused.err


def test_a_port_that_is_taken_is_said_to_be(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    with served(tmp_path) as (url, _):
        port = url.rpartition(":")[2]
        env = {**os.environ, "MILLRACE_URL": f"sqlite:///{tmp_path}/jobs.db"}
        command = [sys.executable, "-m", "millrace", "serve", "--port", port]
        second = subprocess.run(command, env=env, capture_output=True, text=True, timeout=580, check=False)
        assert second.returncode == 3 and "Another server may use this port; choose another --port" in second.stderr
        assert "Traceback" not in second.stderr


def test_the_command_shows_no_token(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MILLRACE_ADMIN_TOKEN", TOKENS["admin"])
    shown = Stage(monkeypatch)("config")
    assert TOKENS["admin"] not in shown.out and "admin_token" in shown.out
