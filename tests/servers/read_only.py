"""Stores of every kind with something of everything in them, opened by somebody who may only read.

`filled(kind, folder)` gives a `Limited`: a URL to write, a URL to read, and `state()`, which is everything that lies in
the store, byte by byte. What the reader may not do is refused by the server, by the file system, or by a proxy.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millrace.store.connect import connect
from millrace.store.protocol import Store
from tests.servers import postgres as postgres_server
from tests.servers import redis_server
from tests.servers.proxy import Forward, Message, Proxy, answer, running_proxy
from tests.spark.filled import fill

if TYPE_CHECKING:
    from tests.servers.ministack import S3Server

KINDS = ("sqlite", "directory", "redis", "postgres", "s3")
JOBS = 20
# What docs/stores.md tells an administrator to grant.
REDIS_RIGHTS = "+@read -@dangerous +eval +evalsha +time +ping +select"


@dataclass
class Limited:
    kind: str
    writer: str
    reader: str
    state: Callable[[], dict[Any, Any]]
    environment: dict[str, str] = field(default_factory=dict)

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        before = self.state()
        assert before
        yield
        after = self.state()
        assert {name for name in before | after if before.get(name) != after.get(name)} == set()


async def with_store(url: str, act: Callable[[Store], Any]) -> Any:
    store = connect(url)
    try:
        await store.connect()
        return await act(store)
    finally:
        await store.close()


async def fill_and_number(store: Store) -> None:
    """Events that are numbered are seen at once; a worker's upkeep does it."""
    await fill(store, JOBS)
    await store.maintain()


@contextmanager
def filled(kind: str, s3: Callable[[], S3Server]) -> Iterator[Limited]:
    with ExitStack() as stack:
        if kind == "s3":
            yield stack.enter_context(_bucket(s3()))
            return
        folder = Path(tempfile.mkdtemp(prefix="millrace-read-"))
        folder.chmod(0o755)
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        made = _MADE[kind](folder, stack)
        run(with_store(made.writer, fill_and_number))
        yield made


def run(work: Any) -> Any:
    """Run a coroutine on a loop of its own, also where a test's loop is running."""
    done: list[Any] = []
    thread = threading.Thread(target=lambda: done.append(asyncio.run(work)))
    thread.start()
    thread.join()
    return done[0]


def _sqlite(folder: Path, _stack: ExitStack) -> Limited:
    url = f"sqlite:///{folder}/jobs.db"
    return Limited("sqlite", url, f"{url}?access=read", lambda: files_in(folder))


def _directory(folder: Path, _stack: ExitStack) -> Limited:
    url = f"file://{folder}/jobs"
    environment = {"MILLRACE_FEED_DELAY_MS": "0"}
    return Limited("directory", url, f"{url}?access=read", lambda: files_in(folder), environment)


def files_in(folder: Path) -> dict[str, Any]:
    """Every file and folder: its kind, its times of change, and a hash of what is in it."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        body = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        found[str(path)] = (status.st_mode, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns, body)
    return found


def _redis(folder: Path, stack: ExitStack) -> Limited:
    import redis

    url = redis_server.url_for(folder)
    prefix = url.partition("prefix=")[2]
    admin = redis.Redis.from_url(redis_server.shared_url())
    stack.callback(admin.close)
    name = f"reader-{secrets.token_hex(4)}"
    admin.execute_command("ACL", "SETUSER", name, "on", ">secret", f"~{{{prefix}}}:*", *REDIS_RIGHTS.split())
    stack.callback(admin.execute_command, "ACL", "DELUSER", name)

    def state() -> dict[bytes, Any]:
        keys = sorted(admin.scan_iter(match=f"{{{prefix}}}:*", count=10_000))
        return {key: admin.dump(key) for key in keys}

    return Limited("redis", url, url.replace("redis://", f"redis://{name}:secret@") + "&access=read", state)


def _postgres(folder: Path, stack: ExitStack) -> Limited:
    import psycopg

    url = postgres_server.url_for(folder)
    stack.callback(postgres_server.release, folder)
    schema = url.rpartition("schema=")[2]
    name = f"reader_{secrets.token_hex(4)}"
    admin = stack.enter_context(psycopg.connect(url.partition("?")[0], autocommit=True))

    def ask(sql: str) -> list[Any]:
        cursor = admin.execute(sql.encode())
        return cursor.fetchall() if cursor.description else []

    ask(f"CREATE ROLE {name} LOGIN")
    stack.callback(lambda: ask(f"DROP OWNED BY {name}; DROP ROLE {name}"))
    ask(f'GRANT USAGE ON SCHEMA "{schema}" TO {name}')
    ask(f'GRANT SELECT ON ALL TABLES IN SCHEMA "{schema}" TO {name}')

    def state() -> dict[str, Any]:
        """All rows of all tables, with the number of the transaction that wrote each; and the state of sequences."""
        tables = [one for [one] in ask(f"SELECT tablename FROM pg_tables WHERE schemaname = '{schema}'")]
        sequences = [one for [one] in ask(f"SELECT sequencename FROM pg_sequences WHERE schemaname = '{schema}'")]
        rows = {table: sorted(ask(f'SELECT xmin::text, t::text FROM "{schema}"."{table}" AS t')) for table in tables}
        return rows | {one: ask(f'SELECT last_value, is_called FROM "{schema}"."{one}"') for one in sequences}

    return Limited("postgres", url, url.replace("postgres@", f"{name}@") + "&access=read", state)


@contextmanager
def _bucket(server: S3Server) -> Iterator[Limited]:
    """A bucket behind a proxy that refuses whatever is no GET or HEAD, and notes that it was asked."""
    from millrace.store.object.s3 import S3Blobs

    address = server.address(secrets.token_hex(8))
    if server.ours:
        S3Blobs(server.address("setup")).admin.setup()
    environment = {
        "AWS_ACCESS_KEY_ID": address.access_key or "",
        "AWS_SECRET_ACCESS_KEY": address.secret_key or "",
        "MILLRACE_FEED_DELAY_MS": "0",
        "MILLRACE_ALLOW_NO_VERSIONING": "1",
    }
    with changed_environment(environment), proxy_aside(server.endpoint, only_reads) as proxy:
        run(with_store(address.url, fill_and_number))
        through = server.address(address.prefix.strip("/").rpartition("/")[2], endpoint=proxy.endpoint).url

        def state() -> Any:
            assert set(proxy.seen) <= {"GET", "HEAD"}, proxy.seen
            return {"refused": 0}

        yield Limited("s3", address.url, f"{through}{'&' if '?' in through else '?'}access=read", state, environment)


async def only_reads(request: Message, forward: Forward) -> Message | None:
    if request.method in ("GET", "HEAD"):
        return await forward(request)
    return answer("403 Forbidden", "AccessDenied")


@contextmanager
def proxy_aside(server: str, rule: Any) -> Iterator[Proxy]:
    """A proxy on an event loop in a thread of its own, for clients that have loops of theirs."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    running = running_proxy(server, rule)
    try:
        yield asyncio.run_coroutine_threadsafe(running.__aenter__(), loop).result()
    finally:
        asyncio.run_coroutine_threadsafe(running.__aexit__(None, None, None), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@contextmanager
def changed_environment(given: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


_MADE: dict[str, Callable[[Path, ExitStack], Limited]] = {
    "sqlite": _sqlite,
    "directory": _directory,
    "redis": _redis,
    "postgres": _postgres,
}
