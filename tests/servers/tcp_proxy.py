"""A proxy between a client and a server that delays, cuts lines, loses answers and falls silent, request by request.

It knows no protocol: a request is what a client sends in one go. `counts` says which of them are counted, for a test
that is about some of them only.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Literal
from urllib.parse import urlsplit, urlunsplit

Fate = Literal["pass", "cut", "swallow", "hang"]
CHUNK = 1 << 20
CARRIED_OUT = 0.15  # seconds after which a server has carried out what it gives no answer to
PORTS = {"redis": 6379, "rediss": 6379, "postgresql": 5432}


def script_call(data: bytes) -> bool:
    """A script that a Redis server is asked to carry out."""
    return b"EVALSHA" in data


class TcpProxy:
    """`fate` is asked at each request that counts, by its number from 1.

    cut: it does not reach the server. swallow: it does, and the line breaks before the answer. hang: it does, and
    nothing ever comes back on that line, which stays open.
    """

    def __init__(self, host: str, port: int, counts: Callable[[bytes], bool] = bool) -> None:
        self._there = host, port
        self._counts = counts
        self.calls = 0
        self.port = 0
        self.delay = 0.0  # seconds by which a request comes later
        self.lines = 0  # that were ever opened
        self.dropped = 0  # requests that came on forgotten lines
        self.fate: Callable[[int], Fate] = lambda _: "pass"
        self.hit = False  # has `lose` met its request?
        self._open: set[_Line] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._speaks = asyncio.Event()
        self._speaks.set()

    # ── what goes wrong ───────────────────────────────────────────────────────────────────────

    def lose(self, k: int, how: Fate = "swallow") -> None:
        """Of the requests from now on, the k-th has this fate, and no other."""
        self.calls, self.hit = 0, False

        def fate(call: int) -> Fate:
            self.hit = self.hit or call == k
            return how if call == k else "pass"

        self.fate = fate

    def pass_all(self) -> None:
        self.fate = lambda _: "pass"

    def fall_silent(self) -> None:
        """A network that swallows everything: nothing arrives, nothing ends, and who connects hears nothing."""
        self._speaks.clear()

    def speak(self) -> None:
        """Everything arrives after all, late."""
        self._speaks.set()

    def point_at(self, url: str) -> None:
        """As after a failover: what is open stays with the old server, what is new goes to this one."""
        parts = urlsplit(url)
        self._there = parts.hostname or "127.0.0.1", parts.port or PORTS[parts.scheme]

    def forget_lines(self) -> None:
        """As a firewall does that was restarted: what is open stays so and carries nothing; what is new works."""
        for line in self._open:
            line.forgotten = True

    # ── what it does ──────────────────────────────────────────────────────────────────────────

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        line = _Line()
        self._open.add(line)
        self.lines += 1
        there: asyncio.StreamWriter | None = None
        back: asyncio.Task[None] | None = None
        try:
            await self._speaks.wait()
            answers, there = await asyncio.open_connection(*self._there)
            back = asyncio.create_task(self._answers(answers, writer, line))
            await self._requests(reader, there, line)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            if back is not None:
                back.cancel()
                with contextlib.suppress(asyncio.CancelledError, OSError):
                    await back
            for end in (writer, there):
                if end is not None:
                    end.close()
            self._open.discard(line)
            self._tasks.discard(task)

    async def _requests(self, reader: asyncio.StreamReader, there: asyncio.StreamWriter, line: _Line) -> None:
        while data := await reader.read(CHUNK):
            fate: Fate = "pass"
            if self._counts(data):
                self.calls += 1
                fate = self.fate(self.calls)
            if fate == "cut":
                return
            line.fate = fate
            line.answered.clear()
            if self.delay:
                await asyncio.sleep(self.delay)
            await self._speaks.wait()
            if line.forgotten:
                self.dropped += 1
                continue
            there.write(data)
            await there.drain()
            if fate == "swallow":
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(line.answered.wait(), CARRIED_OUT)
                return

    async def _answers(self, there: asyncio.StreamReader, writer: asyncio.StreamWriter, line: _Line) -> None:
        with contextlib.suppress(OSError):  # a server that is gone may reset the line instead of ending it
            while data := await there.read(CHUNK):
                await self._speaks.wait()
                if line.fate == "pass" and not line.forgotten:
                    writer.write(data)
                    await writer.drain()
                line.answered.set()
        line.answered.set()
        if not line.forgotten and line.fate != "hang":
            writer.close()

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class _Line:
    def __init__(self) -> None:
        self.fate: Fate = "pass"
        self.forgotten = False
        self.answered = asyncio.Event()


@asynccontextmanager
async def tcp_proxy(
    url: str, counts: Callable[[bytes], bool] = bool, *, tls: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[TcpProxy, str]]:
    """A proxy before the server of a URL, and the URL that leads through it. With `tls`, clients must speak that."""
    parts = urlsplit(url)
    proxy = TcpProxy(parts.hostname or "127.0.0.1", parts.port or PORTS[parts.scheme], counts)
    listener = await asyncio.start_server(proxy.serve, "127.0.0.1", 0, ssl=tls)
    proxy.port = listener.sockets[0].getsockname()[1]
    who, at, _ = parts.netloc.rpartition("@")
    try:
        yield proxy, urlunsplit(parts._replace(netloc=f"{who}{at}127.0.0.1:{proxy.port}"))
    finally:
        listener.close()
        await proxy.close()
