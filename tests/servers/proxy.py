"""A proxy between a client and an S3 server that loses answers, adds them, and drops headers.

It reads and writes HTTP, which tcp_proxy, where lines are cut and answers lost on any protocol, does not.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit


@dataclass
class Message:
    first: str
    headers: dict[str, str]  # names in lower case
    body: bytes = b""

    @property
    def method(self) -> str:
        return self.first.split(" ")[0]

    def raw(self) -> bytes:
        lines = [self.first, *(f"{name}: {value}" for name, value in self.headers.items()), "", ""]
        return "\r\n".join(lines).encode("latin-1") + self.body


Forward = Callable[[Message], Awaitable[Message]]
Rule = Callable[[Message, Forward], Awaitable[Message | None]]  # None: hang up without an answer


async def honest(request: Message, forward: Forward) -> Message | None:
    return await forward(request)


def answer(status: str, code: str) -> Message:
    body = f"<Error><Code>{code}</Code><Message>made up by the proxy</Message></Error>".encode()
    headers = {"content-type": "application/xml", "content-length": str(len(body))}
    return Message(f"HTTP/1.1 {status}", headers, body)


@dataclass
class Proxy:
    server: str
    rule: Rule = honest
    endpoint: str = ""
    seen: list[str] = field(default_factory=list)  # methods, in order

    async def _forward(self, request: Message) -> Message:
        where = urlsplit(self.server)
        reader, writer = await asyncio.open_connection(where.hostname, where.port)
        try:
            writer.write(Message(request.first, {**request.headers, "connection": "close"}, request.body).raw())
            await writer.drain()
            return await _received(reader, bodiless=request.method == "HEAD")
        finally:
            writer.close()
            await writer.wait_closed()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = await _received(reader, bodiless=False)
            self.seen.append(request.method)
            reply = await self.rule(request, self._forward)
            if reply is not None:
                reply.headers["connection"] = "close"
                writer.write(reply.raw())
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.close()


async def _received(reader: asyncio.StreamReader, *, bodiless: bool) -> Message:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
    message = Message(head[0], headers)
    if bodiless:
        return message
    if "chunked" in headers.get("transfer-encoding", ""):
        while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
            message.body += (await reader.readexactly(size + 2))[:-2]
        del headers["transfer-encoding"]
        headers["content-length"] = str(len(message.body))
    else:
        message.body = await reader.readexactly(int(headers.get("content-length", 0)))
    return message


@asynccontextmanager
async def running_proxy(server: str, rule: Rule = honest) -> AsyncIterator[Proxy]:
    proxy = Proxy(server, rule)
    listener = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    async with listener:
        proxy.endpoint = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        yield proxy
