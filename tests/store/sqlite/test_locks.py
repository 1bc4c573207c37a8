"""Several stores of one process on one file: none may take away the locks that keep another's writes safe."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from millrace.domain.job import Spec
from millrace.store.connect import connect

COUNT = """
import asyncio, sys
from millrace.store.connect import connect

async def main():
    store = connect(sys.argv[1])
    await store.connect()
    print(sum(queue.waiting for queue in await store.count()))
    await store.close()

asyncio.run(main())
"""


def seen_by_another_process(url: str) -> int:
    done = subprocess.run([sys.executable, "-c", COUNT, url], capture_output=True, text=True, check=True)
    return int(done.stdout)


async def test_a_second_store_of_a_process_leaves_the_first_ones_locks_alone(tmp_path: Path):
    """POSIX: closing any handle to a file lets go of all locks that the process has on it. A process that comes and
    goes then takes itself for the last one, and removes the log which the first store still writes to."""
    url = f"sqlite:///{tmp_path}/jobs.db"
    first = connect(url)
    await first.connect()
    await first.enqueue([Spec("a", "task")])
    second = connect(url)
    await second.connect()
    await second.enqueue([Spec("b", "task")])
    await second.close()

    assert seen_by_another_process(url) == 2
    assert (tmp_path / "jobs.db-wal").exists()
    await first.enqueue([Spec("c", "task")])
    assert seen_by_another_process(url) == 3

    await first.close()


async def test_a_database_may_be_named_by_a_link_to_where_it_is_to_be(tmp_path: Path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "jobs.db").symlink_to(tmp_path / "disk" / "real.db")
    store = connect(f"sqlite:///{tmp_path}/jobs.db")

    await store.connect()
    await store.close()

    assert (tmp_path / "disk" / "real.db").stat().st_mode & 0o777 == 0o600
