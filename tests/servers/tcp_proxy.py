"""A proxy between a client and a Redis server that cuts lines, loses answers and falls silent, call by call."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Literal
from urllib.parse import urlsplit, urlunsplit

Fate = Literal["pass", "cut", "swallow", "hang"]
CALL = b"EVALSHA"


class TcpProxy:
    """`fate` is asked at each script call, by its number from 1.

    cut: it does not reach the server. swallow: it does, and the line breaks before the answer. hang: it does, and
    nothing ever comes back, while the line stays open.
    """

    def __init__(self, host: str, port: int) -> None:
        self._there = host, port
        self.calls = 0
        self.port = 0
        self.delay = 0.0
        self.fate: Callable[[int], Fate] = lambda _: "pass"
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            there_reader, there_writer = await asyncio.open_connection(*self._there)
        except OSError:
            writer.close()
            return
        line = _Line()
        back = asyncio.create_task(self._answers(there_reader, writer, line))
        try:
            await self._requests(reader, there_writer, line)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            back.cancel()
            with contextlib.suppress(asyncio.CancelledError, OSError):
                await back
            writer.close()
            there_writer.close()
            self._tasks.discard(task)

    async def _requests(self, reader: asyncio.StreamReader, there: asyncio.StreamWriter, line: _Line) -> None:
        while data := await reader.read(1 << 20):
            fate: Fate = "pass"
            if CALL in data:
                self.calls += 1
                fate = self.fate(self.calls)
            if fate == "cut":
                return
            line.fate = fate
            if self.delay:
                await asyncio.sleep(self.delay)
            there.write(data)
            await there.drain()
            if fate == "swallow":
                await line.answered.wait()
                return

    async def _answers(self, there: asyncio.StreamReader, writer: asyncio.StreamWriter, line: _Line) -> None:
        while data := await there.read(1 << 20):
            if line.fate == "pass":
                writer.write(data)
                await writer.drain()
            line.answered.set()
        line.answered.set()
        writer.close()

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class _Line:
    def __init__(self) -> None:
        self.fate: Fate = "pass"
        self.answered = asyncio.Event()


@asynccontextmanager
async def tcp_proxy(url: str) -> AsyncIterator[tuple[TcpProxy, str]]:
    """A proxy before the server of a URL, and the URL that leads through it."""
    parts = urlsplit(url)
    proxy = TcpProxy(parts.hostname or "127.0.0.1", parts.port or 6379)
    listener = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.port = listener.sockets[0].getsockname()[1]
    try:
        yield proxy, urlunsplit(parts._replace(netloc=f"127.0.0.1:{proxy.port}"))
    finally:
        listener.close()
        await proxy.close()
