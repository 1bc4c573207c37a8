"""`millrace move` as a process that is killed, through all stores, and with workers and producers at work."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from millrace.domain.errors import StoreClosed
from millrace.domain.request import Query
from millrace.store.connect import connect
from proof.programs import moving
from proof.programs.kill9_jobs import read_ledger, spec_of
from tests.object.conftest import prepared
from tests.servers import postgres, redis_server
from tests.servers.ministack import S3Server, ministack_server, s3_server

__all__ = ["ministack_server", "s3_server"]

SEED = int(os.environ.get("MILLRACE_SEED", "1"))


def urls_of(folder: Path, bucket: str) -> list[str]:
    """SQLite, PostgreSQL, Redis, a bucket or a directory, SQLite."""
    (folder / "servers").mkdir()
    middle = [postgres.url_for(folder / "servers"), redis_server.url_for(folder / "servers"), bucket]
    return [f"sqlite:///{folder}/first.db", *middle, f"sqlite:///{folder}/last.db"]


@pytest.fixture
def bucket(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3_server.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3_server.secret_key)
    prepared(s3_server)  # which makes the bucket
    address = s3_server.address("moving")
    return f"s3://{address.bucket}/{address.prefix.rstrip('/')}?endpoint={s3_server.endpoint}&region={s3_server.region}"


@pytest.mark.slow
@pytest.mark.server
@pytest.mark.timeout(600)
async def test_jobs_in_all_states_move_through_all_stores_although_the_mover_is_killed(
    tmp_path: Path, bucket: str
) -> None:
    legs = await moving.run(urls_of(tmp_path, bucket), 300, batch=40, seed=SEED, kills=2)

    assert len(legs) == 4
    assert sum(leg.kills for leg in legs) >= 4, f"MILLRACE_SEED={SEED}"


@pytest.mark.nightly
@pytest.mark.server
@pytest.mark.timeout(3_600)
async def test_a_hundred_thousand_jobs_move_through_all_stores_although_the_mover_is_killed(tmp_path: Path) -> None:
    legs = await moving.run(urls_of(tmp_path, f"file://{tmp_path}/jobs"), 100_000, seed=SEED)

    assert sum(leg.kills for leg in legs) >= 3, f"MILLRACE_SEED={SEED}"


def worker(url: str, folder: Path, name: str) -> subprocess.Popen[Any]:
    program = [sys.executable, "-m", "proof.programs.kill9_worker", "--database", url, "--ledgers", str(folder)]
    return subprocess.Popen([*program, "--name", name, "--slots", "4"])


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_no_job_runs_twice_while_workers_and_producers_are_at_work(tmp_path: Path) -> None:
    """Workers run jobs on the source and producers enqueue there until it closes; each job runs once, somewhere."""
    old, new = f"sqlite:///{tmp_path}/old.db", f"sqlite:///{tmp_path}/new.db"
    source, target = connect(old), connect(new)
    await source.connect()
    workers = [worker(old, tmp_path, "on-the-source")]
    produced = 0

    async def produce() -> None:
        nonlocal produced
        while True:
            try:
                await source.enqueue([spec_of("p", produced)])
            except StoreClosed:
                return
            produced += 1
            await asyncio.sleep(0.002)

    try:
        producing = asyncio.create_task(produce())
        while produced < 200 or not (tmp_path / "on-the-source.log").exists():
            await asyncio.sleep(0.02)
        with moving.mover(old, new, 50) as process:
            await asyncio.to_thread(process.communicate)
        assert process.returncode == 0
        await asyncio.wait_for(producing, 60)
        await target.connect()
        for number in range(produced, produced + 50):
            await target.enqueue([spec_of("p", number)])
        workers.append(worker(new, tmp_path, "on-the-target"))
        while any(row.waiting + row.running for row in await target.count()):
            await asyncio.sleep(0.1)
    finally:
        for each in workers:
            each.terminate()
            each.wait()
        await source.close()
        await target.close()
    began = Counter(line[1] for file in tmp_path.glob("on-*.log") for line in read_ledger(file) if line[0] == "began")
    assert began.keys() == {spec_of("p", number).id for number in range(produced + 50)}
    assert [job for job, times in began.items() if times > 1] == []
    target = connect(new)
    await target.connect()
    assert len((await target.find(Query(state="completed", limit=10_000))).jobs) == produced + 50
    await target.close()
