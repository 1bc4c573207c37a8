"""A TCP proxy in front of a server: it passes everything on until told to lose an answer, to cut, or to be silent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Literal

How = Literal["before", "after", "silent"]


class CutProxy:
    """`lose(k)`: of the next requests, the k-th reaches the server and its answer reaches nobody; then both sides end.

    With how="before" the request does not even reach the server; with "silent" nothing is answered and nothing ends.
    """

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._left: int | None = None
        self._how: How = "after"
        self.hit = False
        self.port = 0

    def lose(self, k: int, how: How = "after") -> None:
        self._left, self._how, self.hit = k, how, False

    def pass_all(self) -> None:
        self._left = None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            server_reader, server_writer = await asyncio.open_connection(self._host, self._port)
        except OSError:
            writer.close()
            return
        lost = asyncio.Event()
        back = asyncio.ensure_future(self._answers(server_reader, writer, lost))
        try:
            while data := await reader.read(1 << 16):
                if self._left is not None:
                    self._left -= 1
                    if self._left == 0:
                        self._left, self.hit = None, True
                        lost.set()
                        if self._how == "before":
                            break
                        server_writer.write(data)
                        await server_writer.drain()
                        if self._how == "silent":
                            await asyncio.sleep(3_600)
                        await asyncio.sleep(0.15)  # the server has carried it out by now
                        break
                server_writer.write(data)
                await server_writer.drain()
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            back.cancel()
            for end in (writer, server_writer):
                end.close()

    async def _answers(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, lost: asyncio.Event) -> None:
        with suppress(ConnectionError, asyncio.CancelledError):
            while data := await reader.read(1 << 16):
                if not lost.is_set():
                    writer.write(data)
                    await writer.drain()
            writer.close()


@asynccontextmanager
async def cut_proxy(host: str, port: int) -> AsyncIterator[CutProxy]:
    proxy = CutProxy(host, port)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
