"""A client of the web application, in this process and without a network."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

import httpx
from starlette.applications import Starlette

from millrace import App
from millrace.web import application
from millrace.web.state import ServerState

HERE = "127.0.0.1:8321"
TOKENS = {
    "viewer": "viewer-token-0123456789",
    "operator": "operator-token-0123456789",
    "admin": "admin-token-0123456789",
}


def bearer(role: str) -> dict[str, str]:
    return {"authorization": f"Bearer {TOKENS[role]}"}


class Web:
    """`await web.get("/api/jobs")` answers the JSON, and fails the test when the status is another than expected."""

    def __init__(self, app: App, served: Starlette, client: httpx.AsyncClient) -> None:
        self.app = app
        self.served = served
        self.client = client

    @property
    def server(self) -> ServerState:
        server: ServerState = self.served.state.server
        return server

    async def ask(self, method: str, path: str, body: Any = None, status: int | None = None, **more: Any) -> Any:
        given = {} if body is None else {"json": body}
        response = await self.client.request(method, path, **given, **more)
        if status is not None:
            assert response.status_code == status, (response.status_code, response.text)
        return response

    async def get(self, path: str, code: int = 200, /, **query: Any) -> Any:
        return (await self.ask("GET", path, status=code, params=query)).json()

    async def post(self, path: str, body: Any = None, code: int = 200, **query: Any) -> Any:
        return (await self.ask("POST", path, body, status=code, params=query)).json()

    async def enqueue(self, task: str = "pack", **more: Any) -> str:
        answer = await self.post("/api/jobs", {"task": task, **more}, 201)
        return str(answer["id"])

    def job(self, job_id: str, rest: str = "") -> str:
        return f"/api/jobs/{quote(job_id, safe='')}{rest}"


@asynccontextmanager
async def opened(app: App, *, heads: dict[str, str] | None = None, **options: Any) -> AsyncIterator[Web]:
    """By default the client is a page of the server, on this machine."""
    served = application(app, **options)
    transport = httpx.ASGITransport(served, client=("127.0.0.1", 50_000))
    heads = {"origin": f"http://{HERE}"} if heads is None else heads
    async with app, httpx.AsyncClient(transport=transport, base_url=f"http://{HERE}", headers=heads) as client:
        yield Web(app, served, client)


class Stream:
    """One streaming answer, read as it comes: httpx would wait for its end."""

    def __init__(self, served: Starlette, path: str, query: str = "", heads: dict[str, str] | None = None) -> None:
        self._served = served
        encoded = [(name.encode(), value.encode()) for name, value in {"host": HERE, **(heads or {})}.items()]
        self._scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "GET",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": encoded,
            "client": ("127.0.0.1", 50_000),
            "server": ("127.0.0.1", 8321),
        }
        self._gone = asyncio.Event()
        self._messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._text = ""
        self.status = 0

    async def __aenter__(self) -> Stream:
        self._task = asyncio.create_task(self._served(self._scope, self._receive, self._messages.put))  # type: ignore[arg-type]
        self.status = (await self._next())["status"]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._gone.set()
        async with asyncio.timeout(60):
            await self._task

    async def _receive(self) -> dict[str, Any]:
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _next(self) -> dict[str, Any]:
        async with asyncio.timeout(60):
            return await self._messages.get()

    async def message(self) -> dict[str, str]:
        """The next message, as its fields; comments and what stands alone are left out."""
        while True:
            while "\n\n" not in self._text:
                self._text += (await self._next()).get("body", b"").decode()
            block, self._text = self._text.split("\n\n", 1)
            fields = dict(line.split(": ", 1) for line in block.splitlines() if line and not line.startswith(":"))
            if "event" in fields:
                return fields
