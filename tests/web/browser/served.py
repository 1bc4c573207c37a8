"""A server of its own, in a thread, for a browser to open."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount

from millrace import App
from millrace.web import application


@contextmanager
def served(app: App | str, under: str = "", **options: Any) -> Iterator[str]:
    """The address of the dashboard; `under` a path of a site of somebody's own."""
    made = application(app, **options)
    site = (
        Starlette(routes=[Mount(under, made)], lifespan=lambda _: made.router.lifespan_context(made)) if under else made
    )
    with running(site, made.state.house.closing.set) as base:
        yield f"{base.rstrip('/')}{under}/"


@contextmanager
def running(site: Starlette, before_the_end: Callable[[], None] = lambda: None) -> Iterator[str]:
    config = uvicorn.Config(
        site, host="127.0.0.1", port=0, log_config=None, access_log=False, lifespan="on", timeout_graceful_shutdown=2
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()), daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive(), "the server did not start"
        thread.join(0.02)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}/"
    finally:
        before_the_end()
        server.should_exit = True
        thread.join(10)
        assert not thread.is_alive(), "the server did not stop"
