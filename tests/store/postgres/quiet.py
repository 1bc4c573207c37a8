"""A TCP proxy that can fall silent: lines stay open and new ones are accepted, and nothing comes back on them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit


class Quiet:
    """`hush_at(k)`: the k-th request from now arrives, and its line is dead from then on; others are not."""

    def __init__(self, host: str, port: int) -> None:
        self._there = host, port
        self._speaks = asyncio.Event()
        self._speaks.set()
        self._left = 0
        self._dead: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0

    @property
    def hit(self) -> bool:
        return self._left == 0

    def hush_at(self, k: int) -> None:
        self._left = k

    def fall_silent(self) -> None:
        self._speaks.clear()

    def speak(self) -> None:
        self._speaks.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        with suppress(OSError, asyncio.CancelledError):
            await self._speaks.wait()
            answers, there = await asyncio.open_connection(*self._there)
            back = asyncio.create_task(self._answers(answers, writer))
            try:
                await self._requests(reader, there, writer)
            finally:
                back.cancel()
                there.close()
        writer.close()
        self._tasks.discard(task)

    async def _requests(
        self, reader: asyncio.StreamReader, there: asyncio.StreamWriter, writer: asyncio.StreamWriter
    ) -> None:
        while data := await reader.read(1 << 16):
            await self._speaks.wait()
            if self._left:
                self._left -= 1
                if self._left == 0:
                    self._dead.add(writer)
            there.write(data)
            await there.drain()
            if writer in self._dead:
                await asyncio.Event().wait()  # it hears of nothing any more, not even of the end of the line

    async def _answers(self, answers: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await answers.read(1 << 16):
                await self._speaks.wait()
                if writer not in self._dead:
                    writer.write(data)
                    await writer.drain()
            if writer not in self._dead:
                writer.close()

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@asynccontextmanager
async def quiet_proxy(url: str) -> AsyncIterator[tuple[str, Quiet]]:
    """A proxy before the server of a URL, and the URL that leads through it."""
    where = urlsplit(url)
    proxy = Quiet(str(where.hostname), where.port or 5432)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield url.replace(f":{where.port}/", f":{proxy.port}/"), proxy
    finally:
        server.close()
        await proxy.close()
