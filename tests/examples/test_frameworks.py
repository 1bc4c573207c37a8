"""The examples with frameworks, as a server and a worker in processes of their own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from tests.cli.process import eventually
from tests.examples.program import Example
from tests.servers.ports import free_port


def answers(url: str) -> Callable[[], bool]:
    def ask() -> bool:
        try:
            return httpx.get(url).status_code < 500
        except httpx.TransportError:
            return False

    return ask


def poll(url: str, wanted: dict[str, Any]) -> None:
    eventually(lambda: httpx.get(url).json().items() >= wanted.items())


def test_django(tmp_path: Path) -> None:
    example, port = Example("django", tmp_path), free_port()
    address = f"http://127.0.0.1:{port}"
    example.run("manage.py", "migrate")
    server = example.running("manage.py", "runserver", str(port), "--noreload")
    with server, example.running("manage.py", "millrace", "worker"):
        eventually(answers(address))
        order = httpx.post(f"{address}/orders/", data={"product": "tea"}).json()
        poll(f"{address}/tasks/{order['task']}/", {"status": "SUCCESSFUL", "receipt": "Thank you for the tea."})


def test_flask(tmp_path: Path) -> None:
    example, port = Example("flask", tmp_path), free_port()
    address = f"http://127.0.0.1:{port}"
    flask = ("-m", "flask", "--app", "shop")
    with example.running(*flask, "run", "--port", str(port)), example.running(*flask, "millrace", "worker"):
        eventually(answers(address))
        order = httpx.post(f"{address}/orders", data={"product": "tea"}).json()
        poll(f"{address}/orders/{order['job']}", {"receipt": "Thank you for the tea."})
        assert httpx.get(f"{address}/orders/unknown").status_code == 404


def test_fastapi(tmp_path: Path) -> None:
    example, port = Example("fastapi", tmp_path), free_port()
    address = f"http://127.0.0.1:{port}"
    with example.running("-m", "uvicorn", "shop:api", "--port", str(port)):
        eventually(answers(address))
        order = httpx.post(f"{address}/orders", params={"product": "tea"}).json()
        poll(f"{address}/orders/{order['order']}", {"product": "tea", "receipt": "Thank you for the tea."})
        assert httpx.get(f"{address}/orders/99").status_code == 404
        assert httpx.get(f"{address}/queue/api/queues").status_code == 200
