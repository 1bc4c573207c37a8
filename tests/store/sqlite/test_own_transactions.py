"""The queue is called without `within` while a transaction of the caller's own holds the write lock."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from millrace import App
from millrace.domain.errors import StoreError
from millrace.store.sqlite import SqliteStore, self_deadlock, writer
from millrace.testing.builders import a_spec

LONG = 25.0  # seconds: less than the patience of a call, and far more than it takes to notice
SELF = r"this is a deadlock.*Commit or roll back first.*within=connection"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file that has its tables, and one of the caller's."""
    path = tmp_path / "jobs.db"
    with contextlib.closing(sqlite3.connect(path)) as own:
        own.execute("CREATE TABLE purchase (id INTEGER PRIMARY KEY)")
        own.commit()
    store = SqliteStore(path, shared=True)
    store.enqueue_now([a_spec(id="first")])
    store.close_now()
    return path


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    made = SqliteStore(path, shared=True)
    made.enqueue_now([a_spec()])
    yield made
    made.close_now()


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set when a call that waits was looked at after the patience of `A_WHILE`, which is short here."""
    event, plain = threading.Event(), self_deadlock.self_deadlocks

    def seen(path: str, calls: Any, waited: float) -> Any:
        answer = plain(path, calls, waited)
        if waited > self_deadlock.A_WHILE:
            event.set()
        return answer

    monkeypatch.setattr(self_deadlock, "A_WHILE", 0.3)
    monkeypatch.setattr(writer, "self_deadlocks", seen)
    return event


@contextlib.contextmanager
def quickly() -> Iterator[None]:
    began = time.monotonic()
    yield
    assert time.monotonic() - began < LONG


@contextlib.contextmanager
def writing(path: Path, **options: Any) -> Iterator[sqlite3.Connection]:
    with contextlib.closing(sqlite3.connect(path, **options)) as mine:
        mine.execute("INSERT INTO purchase DEFAULT VALUES")
        yield mine


def ids(store: SqliteStore, *wanted: str) -> list[bool]:
    return [job is not None for job in asyncio.run(store.get(wanted))]


def test_a_thread_that_holds_the_lock_itself_is_told_at_once(store: SqliteStore, path: Path):
    with writing(path) as mine, quickly():
        with pytest.raises(StoreError, match="that you have open yourself holds it: " + SELF):
            store.enqueue_now([a_spec(id="outside")])
        mine.commit()
        store.enqueue_now([a_spec(id="after")])

    assert ids(store, "outside", "after") == [False, True]


def test_an_app_without_an_event_loop_is_told_at_once(path: Path):
    app = App(f"sqlite:///{path}?shared=yes")

    @app.task
    async def work() -> None: ...

    with app.sync, writing(path) as mine, quickly():
        for waits in (work.sync.enqueue, app.sync.queue("default").pause):
            with pytest.raises(StoreError, match=SELF):
                waits()
        mine.rollback()
        work.sync.enqueue()


def test_a_coroutine_is_told_after_a_while(store: SqliteStore, path: Path, looked: threading.Event):
    """The transaction may be another task's, which then goes on and commits."""

    async def story() -> None:
        with writing(path) as mine:
            with pytest.raises(StoreError, match=SELF):
                await store.enqueue([a_spec(id="outside")])
            mine.commit()
        await store.enqueue([a_spec(id="after")])

    with quickly():
        asyncio.run(story())
    assert ids(store, "outside", "after") == [False, True]


async def test_a_task_waits_for_another_that_commits_soon(
    store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(self_deadlock, "A_WHILE", 60)  # soon, however busy this machine is
    with writing(path) as mine:
        waits = asyncio.create_task(store.enqueue([a_spec(id="later")]))
        await asyncio.sleep(0.5)
        assert not waits.done()
        mine.commit()
        assert (await waits)[0].status == "queued"


def test_a_thread_waits_for_the_transaction_of_another(store: SqliteStore, path: Path, looked: threading.Event):
    """However long that takes, and though both belong to one program."""
    held = threading.Event()

    def other() -> None:
        with writing(path) as mine:
            held.set()
            looked.wait(LONG)
            mine.commit()

    thread = threading.Thread(target=other)
    thread.start()
    held.wait(LONG)
    assert store.enqueue_now([a_spec()])[0].status == "queued"
    thread.join()
    assert looked.is_set()


ELSEWHERE = """
import contextlib, sqlite3, sys
mine = sqlite3.connect(sys.argv[1])
mine.execute("INSERT INTO purchase DEFAULT VALUES")
print("held", flush=True)
sys.stdin.readline()
mine.commit()
"""


def test_nobody_is_blamed_for_the_transaction_of_another_process(
    store: SqliteStore, path: Path, looked: threading.Event
):
    """Not even a caller who has one open that only reads."""
    program = [sys.executable, "-c", ELSEWHERE, str(path)]
    with (
        contextlib.closing(sqlite3.connect(path)) as mine,
        subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process,
    ):
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == "held\n"
        mine.execute("BEGIN")
        mine.execute("SELECT * FROM purchase").fetchall()
        end = threading.Thread(target=lambda: (looked.wait(LONG), print(file=process.stdin, flush=True)))
        end.start()
        assert store.enqueue_now([a_spec()])[0].status == "queued"
        end.join()
        assert looked.is_set()


QUEUE = """
import sys
from millrace.store.sqlite import SqliteStore
from millrace.testing.builders import a_spec
store = SqliteStore(sys.argv[1], shared=True)
print("asks", flush=True)
print(store.enqueue_now([a_spec(id="elsewhere")])[0].status, flush=True)
store.close_now()
"""


def test_a_thread_is_told_also_while_another_process_waits_for_the_same_lock(store: SqliteStore, path: Path):
    """It has its turn before this one; both wait for the transaction, and nobody else can end it."""
    lock = store._process._writer._write_lock
    with writing(path) as mine:
        program = [sys.executable, "-c", textwrap.dedent(QUEUE), str(path)]
        with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as process, quickly():
            assert process.stdout is not None and process.stdout.readline() == "asks\n"
            while lock.try_acquire():
                lock.release()
                time.sleep(0.01)
            with pytest.raises(StoreError, match=SELF):
                store.enqueue_now([a_spec(id="outside")])
            mine.commit()
            assert process.stdout.readline() == "queued\n"
    assert ids(store, "outside", "elsewhere") == [False, True]


def test_a_caller_whose_file_has_no_tables_yet_is_told(tmp_path: Path):
    path = tmp_path / "shop.db"
    with contextlib.closing(sqlite3.connect(path)) as own:
        own.execute("PRAGMA journal_mode = WAL")
        own.execute("CREATE TABLE purchase (id INTEGER PRIMARY KEY)")
        own.commit()
    store = SqliteStore(path, shared=True)
    with writing(path) as mine, quickly():
        with pytest.raises(StoreError, match=SELF):
            store.enqueue_now([a_spec()])
        mine.commit()
        assert store.enqueue_now([a_spec()])[0].status == "queued"
    store.close_now()


def test_a_session_of_sqlalchemy_is_noticed(store: SqliteStore, path: Path, looked: threading.Event):
    """Its connections may be used by any thread, so it takes a while."""
    sqlalchemy = pytest.importorskip("sqlalchemy")
    engine = sqlalchemy.create_engine(f"sqlite:///{path}")
    with engine.connect() as mine, quickly():
        mine.execute(sqlalchemy.text("INSERT INTO purchase DEFAULT VALUES"))
        with pytest.raises(StoreError, match=r"that this process has open holds it.*" + SELF):
            store.enqueue_now([a_spec()])
        mine.rollback()
        store.enqueue_now([a_spec()])
    engine.dispose()


def test_a_connection_of_django_is_noticed_at_once(store: SqliteStore, path: Path):
    """It may be used by any thread as far as SQLite knows, and says itself whose it is."""
    kind = type("DatabaseWrapper", (SimpleNamespace,), {"__module__": "django.db.backends.sqlite3.base"})
    with writing(path, check_same_thread=False, isolation_level=None) as mine, quickly():
        mine.execute("BEGIN")
        mine.execute("INSERT INTO purchase DEFAULT VALUES")
        wrapper = kind(connection=mine, _thread_ident=threading.get_ident())
        with pytest.raises(StoreError, match=r"that you have open yourself.*" + SELF):
            store.enqueue_now([a_spec()])
        wrapper.connection.execute("ROLLBACK")
        store.enqueue_now([a_spec()])


def test_where_the_system_does_not_say_who_holds_a_lock_it_takes_a_while(
    store: SqliteStore, path: Path, looked: threading.Event, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr(self_deadlock, "LOCKS", tmp_path / "nothing")
    with writing(path), quickly(), pytest.raises(StoreError, match=SELF):
        store.enqueue_now([a_spec()])


def test_the_systems_list_of_locks_is_read_rightly(path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    with contextlib.closing(sqlite3.connect(path)) as mine:
        mine.execute("SELECT * FROM purchase").fetchall()
        assert self_deadlock.held_by_this_process(str(path)) is None
        mine.execute("INSERT INTO purchase DEFAULT VALUES")
        assert self_deadlock.held_by_this_process(str(path)) is True
        inode = path.with_name("jobs.db-shm").stat().st_ino
        for lines, answer in (
            (f"1: POSIX  ADVISORY  WRITE 1 fe:00:{inode} 120 120", False),
            (f"1: POSIX  ADVISORY  WRITE 1 fe:00:{inode} 0 EOF", False),
            (
                f"1: POSIX  ADVISORY  READ 1 fe:00:{inode} 120 120\n2: FLOCK  ADVISORY  WRITE 1 fe:00:{inode} 0 EOF",
                None,
            ),
            (f"1: POSIX  ADVISORY  WRITE 1 fe:00:{inode} 121 121\n1: -> POSIX ADVISORY WRITE 1 fe:00:1 120 120", None),
        ):
            (tmp_path / "locks").write_text(lines)
            monkeypatch.setattr(self_deadlock, "LOCKS", tmp_path / "locks")
            assert self_deadlock.held_by_this_process(str(path)) is answer
