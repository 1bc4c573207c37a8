"""The dashboard while the demo runs: served on loopback, and opened in a browser if there is one."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import webbrowser
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from importlib.util import find_spec

from millrace.app.app import App
from millrace.app.settings import SETTINGS

HOST: str = SETTINGS["host"].default
PORT: int = SETTINGS["port"].default  # that of `millrace serve`: its page continues where this one ends


def has_web() -> bool:
    return all(find_spec(name) is not None for name in ("starlette", "uvicorn", "prometheus_client"))


@asynccontextmanager
async def dashboard(url: str) -> AsyncIterator[str]:
    """Serve the dashboard of a store inside this block, and yield its address.

    It only reads. Otherwise an action in it could change what the demo audits at its end.
    """
    import uvicorn

    from millrace.web import application

    class Server(uvicorn.Server):
        """A server that leaves Ctrl-C to the demo."""

        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    async with App(url) as app:
        served = application(app, local="viewer")
        config = uvicorn.Config(
            served, log_config=None, log_level="critical", access_log=False, lifespan="on", timeout_graceful_shutdown=2
        )
        server, listening = Server(config), _listening()
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        try:
            yield f"http://{HOST}:{listening.getsockname()[1]}"
        finally:
            served.state.server.shutdown.set()  # ends event streams
            server.should_exit = True
            await serving


def _listening() -> socket.socket:
    """Return a socket on the usual port, or on a free one if the usual port is taken."""
    found = socket.socket()
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((HOST, PORT))
    except OSError:
        found.bind((HOST, 0))
    found.listen()
    return found


def browser(environ: Mapping[str, str] = os.environ) -> webbrowser.BaseBrowser | None:
    """Return a browser with a window, or None. Without a display, only browsers for terminals are left. They would take
    over the terminal of the demo.
    """
    chosen = environ.get("BROWSER")
    if not chosen and sys.platform != "darwin" and not (environ.get("DISPLAY") or environ.get("WAYLAND_DISPLAY")):
        return None
    try:
        found = webbrowser.get()
    except webbrowser.Error:
        return None
    in_terminal = type(found) is webbrowser.GenericBrowser  # browsers with windows are of its subclasses
    return None if in_terminal and not chosen else found
