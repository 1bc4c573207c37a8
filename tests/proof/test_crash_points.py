"""Every call that the SQLite store makes to the disk, cut off: the operation happened as a whole or not at all,
and asking for it again makes it happen once.

A crash after call k leaves on disk what a crash before call k + 1 leaves, so each is tried once: before every call,
and after the last one, when all is done and nobody hears of it.
"""

import asyncio
import os
import random
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from millrace.domain.errors import StoreError
from millrace.store.memory import MemoryStore
from millrace.store.sqlite import SqliteStore
from millrace.store.sqlite.connection import Io
from millrace.testing.builders import a_spec
from millrace.testing.clock import VirtualClock
from millrace.testing.faults import Fault, FaultyStore, InjectedFault
from millrace.testing.invariants import assert_holds, gather
from proof.programs.crash_child import Request
from proof.programs.crash_io import CRASHED, FaultyIo
from proof.programs.crash_scenarios import SCENARIOS, Leases
from proof.programs.kill9_producer import acknowledged
from tests.narrowing import the

ROOT = Path(__file__).resolve().parents[2]
VISITED: Counter[str] = Counter()
WAITS_AT_MOST = 20.0


@dataclass
class Stage:
    """A database with its scene set, and how it looks before and after the operation."""

    name: str
    folder: Path
    now: int
    leases: Leases
    calls: int
    before: dict
    after: dict

    def copy(self) -> Path:
        """The scene as it was, for one more try."""
        target = self.folder / "try.db"
        for old in self.folder.glob("try.db*"):
            shutil.rmtree(old) if old.is_dir() else old.unlink()
        shutil.copyfile(self.folder / "scene.db", target)
        return target

    def open(self, database: Path, io: FaultyIo | None = None) -> SqliteStore:
        return SqliteStore(database, clock=VirtualClock(self.now), salt="act", io=io)

    async def act(self, store):
        return await asyncio.wait_for(SCENARIOS[self.name].act(store, self.leases), WAITS_AT_MOST)


async def set_stage(name: str, folder: Path) -> Stage:
    clock = VirtualClock()
    scene = folder / "scene.db"
    store = SqliteStore(scene, clock=clock, salt="scene")
    await store.connect()
    leases = await SCENARIOS[name].prepare(store, clock)
    await store.close()
    stage = Stage(name, folder, clock(), leases, 0, dump(scene), {})
    io = FaultyIo()
    database = stage.copy()
    store = stage.open(database, io)
    await store.connect()
    io.arm()
    await stage.act(store)
    stage.calls = io.disarm()
    await store.close()
    stage.after = dump(database)
    assert stage.after != stage.before, f"{name} changes nothing, so nothing can be seen"
    return stage


@pytest.fixture
async def stage(request, tmp_path) -> AsyncIterator[Stage]:
    """In memory where the system offers that: what is tested is the death of a process, not of a disk."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else tmp_path) as folder:
        yield await set_stage(request.param, Path(folder))


every_operation = pytest.mark.parametrize("stage", sorted(SCENARIOS), indirect=True)


def dump(database: Path) -> dict:
    """Every row of every table; the number of a claim is left out, since a repeated one draws the next."""
    with closing(sqlite3.connect(database)) as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        return {name: [_plain(row) for row in connection.execute(f"SELECT * FROM {name}")] for name in tables}


def _plain(row: tuple) -> tuple:
    return tuple(
        re.sub(rb"\bact-[0-9a-f]+", b"act-n", value)
        if isinstance(value, bytes)
        else re.sub(r"\bact-[0-9a-f]+", "act-n", value)
        if isinstance(value, str)
        else value
        for value in row
    )


async def recover_and_repeat(stage: Stage, database: Path, point: str) -> None:
    """With a fresh store, as the next process would: whole, or nothing; then once."""
    found = dump(database)
    assert found in (stage.before, stage.after), f"{point}: half of it happened"
    VISITED["done" if found == stage.after else "undone"] += 1
    store = stage.open(database)
    await store.connect()
    try:
        await stage.act(store)
        assert_holds(await gather(store))
    finally:
        await store.close()
    assert dump(database) == stage.after, f"{point}: asked again, it did not happen just once"


@pytest.fixture(scope="module")
def child():
    command = [sys.executable, "-m", "proof.programs.crash_child"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            the(process.stdin).close()
            process.wait(timeout=60)


def ask(child, request: Request) -> int:
    child.stdin.write(msgspec.json.encode(request).decode() + "\n")
    child.stdin.flush()
    return int(child.stdout.readline())


@every_operation
async def test_a_process_that_dies_at_any_call_leaves_all_or_nothing(stage, child):
    for at in range(1, stage.calls + 2):
        database = stage.copy()
        code = ask(child, Request(stage.name, str(database), stage.now, stage.leases, at))
        assert code == (CRASHED if at <= stage.calls else 0)
        await recover_and_repeat(stage, database, f"{stage.name}, crash before call {at} of {stage.calls}")
        VISITED["crash"] += 1
    assert stage.calls > 3


@every_operation
@pytest.mark.parametrize("fault", ["error", "lost"])
async def test_a_call_that_fails_leaves_all_or_nothing_and_a_store_that_goes_on(stage, fault):
    """`error`: the call did nothing. `lost`: it was done, and its answer was lost."""
    for at in range(1, stage.calls + 1):
        database = stage.copy()
        io = FaultyIo()
        store = stage.open(database, io)
        await store.connect()
        point = f"{stage.name}, {fault} at call {at} of {stage.calls}"
        try:
            io.arm(fault, at)
            try:
                await stage.act(store)
            except StoreError:
                VISITED["told"] += 1
            assert io.disarm() >= at, point
            assert dump(database) in (stage.before, stage.after), f"{point}: half of it happened"
            await stage.act(store)
            assert_holds(await gather(store))
        except TimeoutError:
            pytest.fail(f"{point}: no answer within {WAITS_AT_MOST} s")
        finally:
            await store.close()
        assert dump(database) == stage.after, f"{point}: asked again, it did not happen just once"
        VISITED[fault] += 1


async def test_a_process_that_dies_while_it_makes_the_database_is_in_nobodys_way(tmp_path, child):
    code, at = CRASHED, 0
    while code == CRASHED:
        at += 1
        database = tmp_path / f"{at}.db"
        code = ask(child, Request("connect", str(database), VirtualClock()(), [], at))
        store = SqliteStore(database)
        await store.connect()
        [answer] = await store.enqueue([a_spec()])
        await store.close()
        assert answer.status == "queued"
    assert code == 0
    assert at > 5


@pytest.mark.slow
@pytest.mark.parametrize("durability", ["full", "relaxed"])
async def test_what_was_acknowledged_outlives_a_kill_at_any_moment(tmp_path, durability):
    """SIGKILL while it commits one batch after the other, six times on one file."""
    chance = random.Random(7)
    (tmp_path / "ledgers").mkdir()
    places = ["--database", str(tmp_path / "jobs.db"), "--ledgers", str(tmp_path / "ledgers"), "--name", "p"]
    command = [sys.executable, "-m", "proof.programs.kill9_producer", *places, "--jobs", "1000000"]
    for _ in range(6):
        before = acknowledged(tmp_path / "ledgers", "p")
        with subprocess.Popen([*command, "--pause", "0", "--durability", durability], cwd=ROOT) as producer:
            while acknowledged(tmp_path / "ledgers", "p") == before and producer.poll() is None:
                await asyncio.sleep(0.005)
            await asyncio.sleep(chance.uniform(0, 0.1))
            producer.kill()

    store = SqliteStore(tmp_path / "jobs.db")
    promised = [f"p-{number}" for number in range(acknowledged(tmp_path / "ledgers", "p"))]
    found = await store.get(promised)
    await store.close()
    assert len(promised) >= 6
    assert [job for job, kept in zip(promised, found, strict=True) if kept is None] == []
    dump(tmp_path / "jobs.db")  # it is sound


@pytest.mark.parametrize(("durability", "synchronous"), [("full", 2), ("relaxed", 1)])
async def test_sqlite_is_set_to_the_durability_that_is_stated(tmp_path, durability, synchronous):
    opened = []

    class Watched(Io):
        def open(self, path, options="mode=rw"):
            opened.append(super().open(path, options))
            return opened[-1]

    store = SqliteStore(tmp_path / "jobs.db", durability=durability, io=Watched())
    await store.enqueue([a_spec()])

    assert [one.execute("PRAGMA synchronous").fetchone() for one in opened] == [(synchronous,)]
    assert opened[0].execute("PRAGMA journal_mode").fetchone() == ("wal",)
    await store.close()


def test_every_point_was_visited():
    """Runs last: says how many points there were, and that both sides of every commit were seen."""
    print(dict(VISITED))
    if VISITED["crash"] == 0:
        pytest.skip("run together with the tests above, whose points it counts")
    assert min(VISITED[kind] for kind in ("crash", "error", "lost", "done", "undone", "told")) > 0


@pytest.mark.parametrize("fault", [Fault.BEFORE, Fault.AFTER, Fault.TWICE])
@pytest.mark.parametrize("name", sorted(SCENARIOS))
async def test_the_memory_store_does_once_what_it_is_asked_twice(name, fault):
    """There is no disk to fail; what remains is a call or an answer that is lost, so that the caller asks again."""
    undisturbed = await after_the_scene(name, lambda method, number: None)

    assert await after_the_scene(name, lambda method, number: fault if number == 1 else None) == undisturbed


async def after_the_scene(name: str, plan) -> object:
    scenario, clock = SCENARIOS[name], VirtualClock()
    store = MemoryStore(clock=clock, salt="act")
    leases = await scenario.prepare(store, clock)
    try:
        await scenario.act(FaultyStore(store, plan), leases)
    except InjectedFault:
        await scenario.act(store, leases)
    evidence = await gather(store)
    assert_holds(evidence)
    clock.advance(120)
    schedules = await store.schedules(), await store.due_schedules([], 10)
    seen = (evidence, await store.workers(), schedules, await store.control("task", "work", {}))
    return re.sub(r"\bact-[0-9a-f]+", "act-n", repr(msgspec.to_builtins(seen)))
