"""The server that is measured, a process of its own, and what asks it over loopback."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from benchmarks.lab import postgres_place, redis_place
from benchmarks.lab.redis_place import free_port
from benchmarks.lab.subject import PLACES

TOKEN = "benchmark-token-0123456789"
HEADS = f"Authorization: Bearer {TOKEN}\r\n"


@contextmanager
def place(store: str) -> Iterator[str]:
    """The URL of a store for the length of a run; a URL is that of one that stays."""
    if "://" in store:
        yield store
        return
    with tempfile.TemporaryDirectory(prefix="millrace-bench-web-") as folder:
        path = Path(folder) / PLACES[0]
        if store == "sqlite":
            yield f"sqlite:///{folder}/jobs.db"
        elif store == "memory":
            yield "memory://"
        elif store == "redis":
            with redis_place.a_server() as empty:
                empty()
                yield redis_place.url_of(path)
        else:
            with postgres_place.a_server() as fresh:
                fresh()
                yield postgres_place.url_of(path)


class Server:
    def __init__(self, pid: int, port: int) -> None:
        self.pid, self.port = pid, port

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def processor_seconds(self) -> float:
        """What it has used so far: on a busy machine this tells more than the time that passed."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@asynccontextmanager
async def server(url: str, *, tokens: bool = True) -> AsyncIterator[Server]:
    """Once it answers. Without tokens it lets this machine in, as it does a browser."""
    port = free_port()
    command = [sys.executable, "-m", "millrace", "serve", "--url", url, "--port", str(port)]
    env = {**os.environ, "MILLRACE_LOG_LEVEL": "error", **({"MILLRACE_ADMIN_TOKEN": TOKEN} if tokens else {})}
    process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL)  # noqa: ASYNC220
    try:
        for _ in range(300):
            try:
                (await Connection.open(port)).close()
                break
            except OSError:
                await asyncio.sleep(0.1)
        yield Server(process.pid, port)
    finally:
        process.terminate()
        process.wait(30)


class Connection:
    """One keep-alive connection; nothing but what is needed to ask and to read the answer."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
        self._reader, self._writer, self._port = reader, writer, port

    @classmethod
    async def open(cls, port: int) -> Connection:
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=1 << 20), port)

    async def ask(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{self._port}\r\n{HEADS}"
        if body:
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        self._writer.write(head.encode() + b"\r\n" + body)
        answer = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        length = int(answer.split(b"content-length:", 1)[1].split(b"\r\n", 1)[0])
        return int(answer[9:12]), await self._reader.readexactly(length)

    def close(self) -> None:
        self._writer.close()
