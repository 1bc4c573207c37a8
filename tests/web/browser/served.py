"""A server of its own, in a thread, for a browser to open."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount

from millrace import App
from millrace.web import application


@contextmanager
def served(app: App | str, under: str = "", **options: Any) -> Iterator[str]:
    """The address of the dashboard; `under` a path of another site."""
    made = application(app, **options)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with made.router.lifespan_context(made):
            yield

    site = Starlette(routes=[Mount(under, made)], lifespan=lifespan) if under else made
    with running(site, made.state.server.shutdown.set) as base:
        yield f"{base.rstrip('/')}{under}/"


@contextmanager
def running(site: Starlette, before_the_end: Callable[[], None] = lambda: None) -> Iterator[str]:
    config = uvicorn.Config(
        site, host="127.0.0.1", port=0, log_config=None, access_log=False, lifespan="on", timeout_graceful_shutdown=2
    )
    server = uvicorn.Server(config)
    loop = asyncio.new_event_loop()

    def serve() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(server.serve())

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive(), "the server did not start"
        thread.join(0.02)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}/"
    finally:
        loop.call_soon_threadsafe(before_the_end)
        server.should_exit = True
        thread.join(60)
        assert not thread.is_alive(), "the server did not stop"
