"""Files that are not ours, not sound or not writable: an error that says what to do, and nothing destroyed (X3)."""

import asyncio
import gc
import os
import sqlite3
import stat
import subprocess
import sys
import tempfile
import textwrap
from contextlib import closing
from pathlib import Path
from typing import Literal

import pytest

from millrace.domain.errors import InvalidInput, StoreError
from millrace.domain.job import Spec
from millrace.store.connect import connect
from millrace.store.file_system import file_system_of
from millrace.store.sqlite import SqliteStore, connection
from millrace.store.sqlite.file import VERSION, refuse_network_file_system
from millrace.testing.builders import a_claim, a_spec, specs

MOUNTS = r"""
/dev/sda1 / ext4 rw 0 0
server:/export /mnt/shared nfs4 rw 0 0
//server/share /mnt/with\040blank cifs rw 0 0
/dev/sdb1 /mnt/shared/local ext4 rw 0 0
"""


async def open_and_close(path):
    store = SqliteStore(path)
    await store.connect()
    await store.close()


def run_python(code, *arguments):
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)], capture_output=True, text=True, check=False
    )


async def test_a_file_that_is_no_database_is_left_as_it_is(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("dear diary\n" * 100)

    with pytest.raises(StoreError, match="not a SQLite database"):
        await open_and_close(path)

    assert path.read_text() == "dear diary\n" * 100


async def test_the_database_of_another_program_is_left_alone(tmp_path):
    path = tmp_path / "other.db"
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE album (title)")
        other.commit()

    with pytest.raises(StoreError, match="another program"):
        await open_and_close(path)

    with closing(sqlite3.connect(path)) as other:
        assert other.execute("SELECT name FROM sqlite_schema").fetchall() == [("album",)]


async def test_a_database_of_ones_own_is_shared_when_the_url_says_so(tmp_path):
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path)) as own:
        own.execute("CREATE TABLE job (title)")
        own.execute("INSERT INTO job VALUES ('baker')")
        own.execute("PRAGMA user_version = 7")
        own.execute("PRAGMA application_id = 11")
        own.commit()
    store = connect(f"sqlite:///{path}?shared=yes")
    assert store.url.endswith("?shared=yes")

    await store.connect()
    await store.enqueue([Spec("a", "bake")])
    await store.close()

    with closing(sqlite3.connect(path)) as own:
        assert own.execute("SELECT title FROM job").fetchall() == [("baker",)]
        assert own.execute("PRAGMA user_version").fetchone() == (7,)
        assert own.execute("PRAGMA application_id").fetchone() == (11,)
        [names] = zip(*own.execute("SELECT name FROM sqlite_schema WHERE type = 'table'"), strict=True)
    assert {name.removeprefix("millrace_") for name in names if name.startswith("millrace_")} >= {"job", "event"}
    assert [name for name in names if not name.startswith(("millrace_", "sqlite_"))] == ["job"]
    await open_and_close(path)  # it has Millrace's tables now, so it need not be said again


async def test_sharing_is_said_by_yes_or_no():
    with pytest.raises(InvalidInput, match="shared is yes or no"):
        connect("sqlite:///jobs.db?shared=perhaps")


@pytest.mark.parametrize(("version", "advice"), [(VERSION + 1, "Upgrade millrace"), (VERSION - 1, "choose a new file")])
async def test_a_file_with_another_schema_version_is_refused_with_advice(tmp_path, version, advice):
    path = tmp_path / "jobs.db"
    await open_and_close(path)
    with closing(sqlite3.connect(path)) as other:
        other.execute(f"UPDATE millrace_store SET version = {version}")
        other.commit()

    with pytest.raises(StoreError, match=rf"schema version {version}.*{advice}"):
        await open_and_close(path)


async def test_a_directory_that_is_not_there_is_named(tmp_path):
    with pytest.raises(StoreError, match="no directory"):
        await open_and_close(tmp_path / "nowhere" / "jobs.db")


async def test_a_directory_in_place_of_a_file_is_refused(tmp_path):
    with pytest.raises(StoreError, match="is a directory"):
        await open_and_close(tmp_path)


async def test_after_a_failed_opening_the_next_one_works(tmp_path):
    store = SqliteStore(tmp_path / "sub" / "jobs.db")
    with pytest.raises(StoreError):
        await store.connect()

    (tmp_path / "sub").mkdir()
    await store.connect()
    await store.enqueue([a_spec()])
    await store.close()


@pytest.mark.parametrize("what", ["file", "directory"])
def test_a_read_only_file_or_directory_says_what_to_change(what):
    """Run as a user who is not root, who may write everything."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        done = run_python(
            """
            import asyncio, concurrent.futures.thread, os, sys
            from millrace.domain.errors import StoreError
            from millrace.store.sqlite import SqliteStore
            folder, what = sys.argv[1:]
            if os.getuid() == 0:
                os.setgid(65534)
                os.setuid(65534)
            place = os.path.join(folder, "place")
            os.mkdir(place)
            path = os.path.join(place, "jobs.db")
            async def main():
                store = SqliteStore(path)
                await store.connect()
                await store.close()
            asyncio.run(main())
            os.chmod(path if what == "file" else place, 0o400 if what == "file" else 0o500)
            if what == "directory":
                for name in os.listdir(place):
                    if name != "jobs.db":
                        os.chmod(place, 0o700)
                        target = os.path.join(place, name)
                        os.rmdir(target) if os.path.isdir(target) else os.unlink(target)
                os.chmod(place, 0o500)
            try:
                asyncio.run(main())
            except StoreError as error:
                print("refused:", error)
            finally:
                os.chmod(place, 0o700)
            """,
            folder,
            what,
        )
    assert done.stdout.startswith("refused:"), done.stdout + done.stderr
    assert "write both the file and its directory" in done.stdout


# X3
@pytest.mark.parametrize("name", ["jobs.db", f"{'jobs' * 30}.db"], ids=["short", "long"])
async def test_the_files_are_for_their_owner_only(monkeypatch, name):
    """GUARANTEES 9, temp files and permissions: whatever the umask.

    If the path is too long for the address of a socket, the sockets are in the folder for temporary files.
    """
    with tempfile.TemporaryDirectory() as folder:  # its path is shorter than `tmp_path`
        monkeypatch.setattr(tempfile, "tempdir", folder)
        old = os.umask(0)
        try:
            store = SqliteStore(Path(folder, name))
            await store.connect()
            await store.enqueue([a_spec()])
            await store.wait(["default"], None, 0)
            paths = [path for path in Path(folder).rglob("*") if not path.is_symlink()]
            modes = {path: stat.S_IMODE(path.stat().st_mode) for path in paths}
            await store.close()
        finally:
            os.umask(old)

    sockets = [path.parent.name for path in paths if path.name == "1"]
    assert {name, f"{name}-wal", f"{name}-lock", f"{name}-wake"} <= {path.name for path in paths}
    assert [folder.startswith(name) for folder in sockets] == [name == "jobs.db"]
    assert {str(path): oct(mode) for path, mode in modes.items() if mode & 0o077} == {}


def test_a_network_file_system_is_refused():
    """GUARANTEES 5: WAL needs shared memory."""
    for path in ("/mnt/shared/jobs.db", "/mnt/with blank/jobs.db"):
        with pytest.raises(StoreError, match="network file system"):
            refuse_network_file_system(path, MOUNTS)
    refuse_network_file_system("/var/jobs.db", MOUNTS)
    refuse_network_file_system("/mnt/shared/local/jobs.db", MOUNTS)
    assert file_system_of("/mnt/sharedness/jobs.db", MOUNTS) == "ext4"
    assert file_system_of("/var/jobs.db", "") == ""


# X5
def test_a_full_disk_is_an_error_that_passes(tmp_path):
    """ENOSPC: typed error, no corruption, and the store works again once there is room."""
    done = run_python(
        """
        import asyncio, resource, signal, sys
        from millrace.domain.errors import StoreError
        from millrace.domain.job import Spec
        from millrace.store.sqlite import SqliteStore
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

        async def main():
            store = SqliteStore(sys.argv[1])
            await store.connect()
            resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
            kept, n = 0, 0
            try:
                while n < 100:
                    n += 1
                    await store.enqueue([Spec(id=f"{n}-{i}", task="t", payload=b"x" * 2000) for i in range(50)])
                    kept += 50
            except StoreError as error:
                print("told:", error)
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            await store.enqueue([Spec(id=f"again-{i}", task="t") for i in range(50)])
            counts = await store.count()
            print("kept:", counts[0].waiting - 50 - kept, await store.check())
            await store.close()

        asyncio.run(main())
        """,
        tmp_path / "jobs.db",
    )
    assert "told:" in done.stdout and "full" in done.stdout, done.stdout + done.stderr
    assert "kept: 0 []" in done.stdout


# X5
async def test_damage_is_found_when_the_file_was_not_closed(tmp_path):
    """ROT: checked at opening after a crash, and on demand."""
    path = tmp_path / "jobs.db"
    store = SqliteStore(path)
    await store.connect()
    await store.enqueue(specs(2_000))
    assert await store.check() == []
    await store.close()
    damage(path)
    Path(f"{path}-wal").write_bytes(b"left behind by a process that is gone")

    with pytest.raises(StoreError, match="damaged"):
        await open_and_close(path)


def damage(path):
    with open(path, "r+b") as file:
        size = file.seek(0, os.SEEK_END)
        for page in range(8, size // 4096, 3):
            file.seek(page * 4096)
            file.write(b"\xa5" * 64)


async def test_the_log_is_emptied_when_nothing_happens(tmp_path):
    store = SqliteStore(tmp_path / "jobs.db")
    await store.connect()
    for _ in range(20):
        await store.enqueue(specs(500, payload=b"x" * 1000))
    log = tmp_path / "jobs.db-wal"
    assert 0 < log.stat().st_size < 64 << 20

    async with asyncio.timeout(60):
        while log.stat().st_size > 0:
            await asyncio.sleep(0.05)
    await store.close()
    assert not log.exists()


# BE-17
async def test_the_store_says_what_an_answer_survives(tmp_path):
    assert "crash of the machine" in SqliteStore(tmp_path / "a.db").durability
    assert "may take" in SqliteStore(tmp_path / "a.db", durability="relaxed").durability
    levels: list[tuple[Literal["full", "relaxed"], int]] = [("full", 2), ("relaxed", 1)]
    for level, expected in levels:
        store = SqliteStore(tmp_path / f"{level}.db", durability=level)
        await store.connect()
        writer = store._here()._writer
        assert writer._connection.execute("PRAGMA synchronous").fetchone() == (expected,)
        await store.close()


def remove(path: Path) -> None:
    """As an operator would: the file, its log and what else lies beside it."""
    for found in path.parent.glob(f"{path.name}*"):
        found.unlink()


async def a_new_file(path: Path) -> None:
    """What another process makes in place of the removed one; its log is not written back."""
    done = await asyncio.to_thread(
        run_python,
        """
        import asyncio, os, sys
        from millrace.store.sqlite import SqliteStore
        from millrace.testing.builders import specs

        async def main():
            store = SqliteStore(sys.argv[1])
            await store.connect()
            await store.enqueue(specs(3))
            os._exit(0)

        asyncio.run(main())
        """,
        path,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("what", ["removed", "replaced", "moved away", "its log removed"])
async def test_a_file_that_is_taken_away_under_a_running_store_takes_no_more_jobs(tmp_path, what, monkeypatch):
    """Nothing is acknowledged that would be in a file without a name, and nothing is read from one."""
    monkeypatch.setattr(connection, "LOOK_AT_LOG", 0.0)
    path = tmp_path / "jobs.db"
    store = SqliteStore(path)
    await store.connect()
    await store.enqueue(specs(2))
    assert len(await store.claim(a_claim(1))) == 1
    if what == "moved away":
        path.rename(tmp_path / "elsewhere.db")
    elif what == "its log removed":
        path.with_name("jobs.db-wal").unlink()
    else:
        remove(path)
    if what == "replaced":
        await a_new_file(path)

    for _ in range(2):
        with pytest.raises(StoreError, match=r"was removed or replaced while this process had it open.*start them"):
            await store.enqueue(specs(1))
    with pytest.raises(StoreError, match="removed or replaced"):
        await store.claim(a_claim(1))
    with pytest.raises(StoreError, match="removed or replaced"):
        await store.get(["x"])
    with pytest.raises(StoreError, match="removed or replaced"):
        store.enqueue_now(specs(1))
    await store.close()


async def test_a_store_whose_file_was_replaced_leaves_the_new_one_alone(tmp_path):
    """SQLite removes the log of the last connection by its name, which is the new file's by then."""
    path = tmp_path / "jobs.db"
    store = SqliteStore(path)
    await store.connect()
    await store.enqueue(specs(2))
    remove(path)
    await a_new_file(path)
    with pytest.raises(StoreError, match="removed or replaced"):
        await store.enqueue(specs(1))
    await store.close()
    gc.collect()

    await store.connect()
    assert [counts.waiting for counts in await store.count()] == [3]
    await store.enqueue(specs(1))
    assert [counts.waiting for counts in await store.count()] == [4]
    await store.close()


async def test_a_store_that_does_nothing_says_that_its_file_is_gone(tmp_path, caplog):
    path = tmp_path / "jobs.db"
    store = SqliteStore(path)
    await store.connect()
    await store.enqueue(specs(2))
    remove(path)
    async with asyncio.timeout(60):
        while "was removed or replaced" not in caplog.text:
            await asyncio.sleep(0.05)
    await store.close()
