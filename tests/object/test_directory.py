"""The directory driver: what lies on the disk, who may read it, and what is done about what does not belong there."""

import asyncio
import errno
import fcntl
import os
import random
import shutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from millrace.domain.errors import StoreError
from millrace.store.file_system import file_system_of
from millrace.store.object.blobs import Blobs, LostReply, Won, Write
from millrace.store.object.directory import DirectoryBlobs, file_format, listing, object_files
from millrace.store.object.directory import folder as home
from millrace.store.object.directory.change_signal import ChangeSignal
from millrace.store.object.directory.file_format import TRAILER_SIZE, Torn, newest, revision_of, revisions, seal
from millrace.store.object.directory.locks import Locks, shard_of
from millrace.store.object.driver import Expect
from millrace.testing.clock import VirtualClock
from tests.narrowing import checked_cast, the
from tests.object.noted import noted

PROGRAMS = Path(__file__).parent / "programs"


@pytest.fixture
async def blobs(driver: DirectoryBlobs):
    return Blobs(driver)


def files_below(root: Path) -> set[str]:
    return {str(file.relative_to(root)) for file in root.rglob("*") if not file.is_dir()}


async def test_an_object_is_a_file_that_can_be_read_with_any_tool(blobs: Blobs, driver: DirectoryBlobs):
    await blobs.create("tasks/0/j1.json", b'{"id": "j1"}')

    content = Path(driver.home.root, "tasks/0/j1.json").read_bytes()

    assert content.splitlines()[0] == b'{"id": "j1"}'
    assert content.splitlines()[1].startswith(b"#millrace 000000000001 00000000000c ")
    assert len(content) == 12 + TRAILER_SIZE


async def test_only_the_owner_may_read_it(blobs: Blobs, driver: DirectoryBlobs):
    old = os.umask(0)
    try:
        await blobs.create("tasks/0/a/b/j1.json", b"x")
        answer = checked_cast(Won, await blobs.create("tasks/0/j2.json", b"x"))
        await blobs.swap("tasks/0/j2.json", b"y", answer.tag)
    finally:
        os.umask(old)

    root = Path(driver.home.root)
    folders = [root, *(path for path in root.rglob("*") if path.is_dir())]
    files = [path for path in root.rglob("*") if path.is_file()]
    assert {stat.S_IMODE(path.stat().st_mode) for path in folders} == {0o700}
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}


async def test_a_directory_with_other_things_in_it_is_refused_and_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")

    with pytest.raises(StoreError, match="not empty and is not a store: it contains 'thesis.txt'"):
        await DirectoryBlobs(tmp_path).connect()
    assert files_below(tmp_path) == {"thesis.txt"}


async def test_a_store_of_another_format_is_refused(blobs: Blobs, driver: DirectoryBlobs):
    Path(driver.home.own, "format").write_text("millrace directory 9\n")

    with pytest.raises(StoreError, match="another format.*millrace directory 9"):
        await DirectoryBlobs(driver.home.root).connect()


async def test_a_path_that_cannot_be_a_directory_is_refused(tmp_path):
    (tmp_path / "file").write_text("x")

    with pytest.raises(StoreError, match="cannot be used as a store"):
        await DirectoryBlobs(tmp_path / "file" / "store").connect()


MOUNTS = """/dev/vda / ext4 rw,relatime 0 0
server:/x /mnt/my\\040share nfs4 rw 0 0
tmpfs /mnt/my\\040share/local tmpfs rw 0 0
host:/ /mnt/other fuse.sshfs rw 0 0
"""


def test_network_file_systems_are_told_from_local_disks():
    assert file_system_of("/var/jobs", MOUNTS) == "ext4"
    assert file_system_of("/mnt/my share", MOUNTS) == "nfs4"
    assert file_system_of("/mnt/my shared", MOUNTS) == "ext4"
    assert file_system_of("/mnt/my share/local/x", MOUNTS) == "tmpfs"
    assert file_system_of("/x", "nonsense") == ""


async def test_a_network_file_system_is_refused_unless_asked_for(tmp_path, monkeypatch):
    with pytest.raises(StoreError, match=r"network file system \(fuse.sshfs\).*s3://"):
        home.refuse_network_file_system("/mnt/other/jobs", MOUNTS)

    monkeypatch.setattr(home, "file_system_of", lambda path, mounts: "nfs4")
    with pytest.raises(StoreError, match="nfs4"):
        await DirectoryBlobs(tmp_path / "a").connect()
    allowed = DirectoryBlobs(tmp_path / "b", allow_network=True)
    await allowed.connect()
    await allowed.close()


# What does not belong there


async def test_a_file_cut_short_is_put_aside_and_never_served(blobs: Blobs, driver: DirectoryBlobs, caplog):
    await blobs.create("tasks/0/a.json", b"a long enough body")
    file = Path(driver.home.root, "tasks/0/a.json")
    file.write_bytes(file.read_bytes()[:-20])

    assert await blobs.get("tasks/0/a.json") is None

    assert [report.partition(";")[0] for report in driver.reports] == [
        "tasks/0/a.json is torn or was not written by this store"
    ]
    assert "tasks/0/a.json is torn" in caplog.text
    [kept] = Path(driver.home.own, "quarantine").iterdir()
    assert kept.read_bytes().startswith(b"a long enough body")
    assert (await blobs.list("tasks/")).entries == ()
    assert isinstance(await blobs.create("tasks/0/a.json", b"again"), Won)


@pytest.mark.parametrize("damage", [b"", b"short", b"y" * 500])
async def test_a_listing_and_a_write_get_over_a_broken_file(blobs: Blobs, driver: DirectoryBlobs, damage):
    answer = checked_cast(Won, await blobs.create("tasks/0/a.json", b"body"))
    await blobs.create("tasks/0/b.json", b"body")
    Path(driver.home.root, "tasks/0/a.json").write_bytes(damage)

    assert isinstance(await blobs.swap("tasks/0/a.json", b"new", answer.tag), LostReply)
    assert [entry.key for entry in (await blobs.list("tasks/")).entries] == ["tasks/0/b.json"]
    assert isinstance(await blobs.create("tasks/0/a.json", b"newer"), Won)
    assert len(driver.reports) == 1


async def test_an_empty_file_is_put_aside_by_a_listing(blobs: Blobs, driver: DirectoryBlobs):
    Path(driver.home.root, "ready").mkdir()
    Path(driver.home.root, "ready/a.x").touch()

    assert (await blobs.list("ready/")).entries == ()
    assert len(driver.reports) == 1 and files_below(Path(driver.home.root, "ready")) == set()


@pytest.mark.parametrize("name", ["README", "notes~", "a%2Ejson", "%zz", "x.swp\n", ".DS_Store", "plain-without-mark"])
async def test_foreign_files_are_put_aside(blobs: Blobs, driver: DirectoryBlobs, name):
    await blobs.create("tasks/0/a.json", b"body")
    Path(driver.home.root, "tasks/0", name).write_text("not ours")

    assert [entry.key for entry in (await blobs.list("tasks/")).entries] == ["tasks/0/a.json"]
    assert [report.partition(" is not")[0] for report in driver.reports] == [f"tasks/0/{name}"]
    assert files_below(Path(driver.home.root, "tasks")) == {"0/a.json"}


async def test_a_copy_under_another_name_is_not_an_object(blobs: Blobs, driver: DirectoryBlobs):
    await blobs.create("tasks/0/a.json", b"body")
    shutil.copy(Path(driver.home.root, "tasks/0/a.json"), Path(driver.home.root, "tasks/0/b.json"))

    assert await blobs.get("tasks/0/b.json") is None
    assert await blobs.get("tasks/0/a.json") is not None


async def test_links_out_of_the_directory_are_not_followed(blobs: Blobs, driver: DirectoryBlobs, tmp_path):
    secret = tmp_path / "secret"
    secret.write_bytes(seal("tasks/0/link.json", b"theirs", 1, 0)[0])
    await blobs.create("tasks/0/a.json", b"body")
    Path(driver.home.root, "tasks/0/link.json").symlink_to(secret)

    assert await blobs.get("tasks/0/link.json") is None
    assert isinstance(await blobs.create("tasks/0/link.json", b"ours"), Won)
    assert secret.read_bytes().startswith(b"theirs")
    assert len(driver.reports) == 1


async def test_folders_that_no_key_can_have_are_passed_over_and_reported_once(blobs: Blobs, driver: DirectoryBlobs):
    await blobs.create("tasks/0/a.json", b"body")
    Path(driver.home.root, "tasks", "My Documents").mkdir()

    for _ in range(3):
        assert len((await blobs.list("tasks/")).entries) == 1
    assert driver.reports == ["tasks/My Documents is a folder that no key can have; it is ignored"]


async def test_what_dead_writers_left_is_removed_after_an_hour_and_not_before(driver: DirectoryBlobs):
    fresh, stale = Path(driver.home.own, "tmp/1-a-1"), Path(driver.home.own, "tmp/1-a-2")
    for file in (fresh, stale):
        file.write_bytes(b"half")
    os.utime(stale, (time.time() - 7200, time.time() - 7200))

    other = DirectoryBlobs(driver.home.root)
    await other.connect()
    await other.close()

    assert fresh.exists() and not stale.exists()
    assert other.reports == ["removed 1-a-2, left by a writer that died"]


def test_a_sealed_body_comes_back_and_any_change_is_noticed():
    content, tag = seal("k", b"body\n#millrace", 7, 123)
    found = newest("k", content)
    assert (found.body, found.tag, found.at, found.end) == (b"body\n#millrace", tag, 123, len(content))
    assert revision_of(tag) == 7

    word = content.rindex(b"millrace")
    for place in range(len(content)):
        broken = content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]
        if place in (word + 6, word + 7):  # these two letters become other digits of a boot's name
            assert newest("k", broken).body == found.body
            continue
        with pytest.raises(Torn):
            newest("k", broken)
    for cut in range(len(content)):
        with pytest.raises(Torn):
            newest("k", content[:cut])
    with pytest.raises(Torn):
        newest("other", content)
    assert [revision_of(text) for text in ("", "x-1", "-1-a", "²-a", "9" * 20 + "-a")] == [0, 0, 0, 0, 0]


@pytest.mark.parametrize("word", [file_format.LANDED, b"0badb007", file_format.NO_BOOT])
def test_wherever_the_last_revision_is_cut_or_changed_the_ones_before_it_count(word):
    old, first = seal("k", b'{"n":1}', 1, 5)
    old += seal("k", b'{"n":2}', 2, 6)[0]
    second = newest("k", old).tag
    new, third = seal("k", b'{"n":3,"text":"a longer one"}', 3, 7, word)

    whole = [revision.tag for revision in revisions("k", old + new)]
    assert whole == ([second, first] if word == file_format.NO_BOOT else [third, second, first])
    for cut in range(len(new)):
        for tail in (new[:cut], new[:cut] + bytes(len(new) - cut), bytes(cut)):
            assert newest("k", old + tail).tag == second, (cut, tail)
    for place in range(len(new)):
        broken = new[:place] + bytes([new[place] ^ 1]) + new[place + 1 :]
        assert newest("k", old + broken).tag in (
            second,
            third if place in range(place_of(new), place_of(new) + 8) else "",
        )


def place_of(content: bytes) -> int:
    return content.index(b"\n#") + 2


# Writing


async def test_no_temporary_file_is_left_by_wins_losses_or_deletes(blobs: Blobs, driver: DirectoryBlobs):
    first = checked_cast(Won, await blobs.create("tasks/0/a", b"1"))
    await blobs.create("tasks/0/a", b"2", durable=False)
    await blobs.swap("tasks/0/a", b"3", "1-stale", durable=False)
    await blobs.swap("tasks/0/a", b"4", first.tag)
    await blobs.delete(["tasks/0/a"])

    assert not any(Path(driver.home.own, "tmp").iterdir())


async def test_empty_folders_are_removed_by_a_later_listing(blobs: Blobs, driver: DirectoryBlobs, monkeypatch):
    await blobs.put_many({"ready/0/q/29/a.1": b"x", "ready/0/q/29/a.2": b"x", "ready/1/b.1": b"x"})

    await blobs.delete(["ready/0/q/29/a.1"])
    assert Path(driver.home.root, "ready/0/q/29").is_dir()
    await blobs.delete(["ready/0/q/29/a.2"])
    await blobs.list("ready/")
    assert Path(driver.home.root, "ready/0/q/29").is_dir(), "it may be wanted again at once"
    monkeypatch.setattr(listing, "EMPTY_FOR", -1)
    for _ in range(3):
        await blobs.list("ready/")

    assert not Path(driver.home.root, "ready/0").exists()
    assert Path(driver.home.root, "ready/1").is_dir()
    await blobs.put("ready/0/q/29/a.3", b"x")
    assert len((await blobs.list("ready/")).entries) == 2


async def test_folders_that_come_and_go_lose_no_object(tmp_path, monkeypatch):
    """One client empties a folder, and removes it, while the other fills it."""
    monkeypatch.setattr(listing, "EMPTY_FOR", -1)
    clients = [Blobs(DirectoryBlobs(tmp_path / "s", durability="relaxed")) for _ in range(2)]
    for client in clients:
        await client.connect()

    async def churn(client: Blobs, me: int) -> None:
        for n in range(60):
            key = f"ready/{n % 3}/x/{me}.{n}"
            await client.put(key, b"x")
            assert await client.get(key) is not None
            await client.delete([key])
            await client.list("ready/")

    await asyncio.gather(*(churn(client, me) for me, client in enumerate(clients)))

    assert (await clients[0].list("")).entries == ()
    for client in clients:
        await client.close()


async def test_waiting_writes_of_a_folder_share_one_flush(blobs: Blobs, driver: DirectoryBlobs, monkeypatch):
    await blobs.create("tasks/0/first", b"x")
    flushed: list[str] = []
    real = home.sync_folder
    monkeypatch.setattr(object_files, "sync_folder", noted(real, flushed.append))

    await blobs.write_many([Write(f"tasks/0/{n}", b"x") for n in range(50)])

    assert flushed == [f"{driver.home.root}/tasks/0"]


async def test_a_new_folder_is_made_durable_up_to_the_root(blobs: Blobs, driver: DirectoryBlobs, monkeypatch):
    flushed: list[str] = []
    real = home.sync_folder
    monkeypatch.setattr(object_files, "sync_folder", noted(real, flushed.append))

    await blobs.create("data/x/y/z", b"x")

    assert flushed == [f"{driver.home.root}/{part}".rstrip("/") for part in ("data/x/y", "data/x", "data", "")]


@pytest.mark.parametrize(("level", "durable", "flushes"), [("full", True, 1), ("full", False, 0), ("relaxed", True, 0)])
async def test_who_waits_for_the_disk(tmp_path, monkeypatch, level, durable, flushes):
    blobs = Blobs(DirectoryBlobs(tmp_path / "s", durability=level))
    await blobs.connect()
    count = 0
    real = os.fsync

    def fsync(file: int) -> None:
        nonlocal count
        count += stat.S_ISREG(os.fstat(file).st_mode)
        real(file)

    monkeypatch.setattr(os, "fsync", fsync)
    await blobs.create("tasks/0/a", b"x", durable=durable)
    await blobs.close()

    assert count == flushes
    assert ("power loss" in blobs.durability) == (level == "full")


async def test_a_stale_swap_is_refused_before_anything_is_written(blobs: Blobs, monkeypatch):
    first = checked_cast(Won, await blobs.create("tasks/0/a", b"1"))
    await blobs.swap("tasks/0/a", b"2", first.tag)
    monkeypatch.setattr(os, "fsync", lambda file: pytest.fail("flushed for nothing"))

    assert await blobs.swap("tasks/0/a", b"3", first.tag) == LostReply()


async def test_a_full_disk_is_reported_and_leaves_nothing_behind(blobs: Blobs, driver: DirectoryBlobs, monkeypatch):
    first = checked_cast(Won, await blobs.create("tasks/0/a", b"1"))
    real = os.write

    def write(file: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", write)
    with pytest.raises(StoreError, match="No space left on device"):
        await blobs.swap("tasks/0/a", b"2", first.tag)
    monkeypatch.setattr(os, "write", real)

    assert not any(Path(driver.home.own, "tmp").iterdir())
    assert isinstance(await blobs.swap("tasks/0/a", b"2", first.tag), Won)


async def test_a_folder_that_cannot_be_flushed_is_no_success(blobs: Blobs, monkeypatch):
    def fails(path: str) -> int:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("millrace.store.object.directory.object_files.sync_folder", fails)
    with pytest.raises(StoreError, match="Input/output error"):
        await blobs.create("tasks/0/a", b"1")


async def test_a_stopped_process_that_holds_the_lock_is_named(tmp_path):
    (tmp_path / "locks").mkdir()
    holder = os.open(tmp_path / "locks/03", os.O_RDWR | os.O_CREAT)
    fcntl.flock(holder, fcntl.LOCK_EX)
    locks = Locks(str(tmp_path / "locks"), patience=0.05)
    try:
        with pytest.raises(StoreError, match=f"locked for 0.05 s by process {os.getpid()}"), locks.held(3):
            raise AssertionError("two have the lock")
        fcntl.flock(holder, fcntl.LOCK_UN)
        with locks.held(3), pytest.raises(BlockingIOError):
            fcntl.flock(holder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        locks.close()
        os.close(holder)
    assert len({shard_of(f"tasks/0/{n}") for n in range(200)}) > 40, "jobs of one folder seldom wait for each other"


async def test_nothing_is_done_before_connect_or_after_close(tmp_path):
    driver = DirectoryBlobs(tmp_path / "s")
    with pytest.raises(StoreError, match="not connected"):
        await Blobs(driver).get("a")
    await driver.connect()
    await driver.close()
    with pytest.raises(StoreError, match="not connected"):
        await Blobs(driver).create("a", b"x")


async def test_what_was_begun_is_finished_by_close(tmp_path):
    blobs = Blobs(DirectoryBlobs(tmp_path / "s"))
    await blobs.connect()
    begun = [asyncio.create_task(blobs.create(f"tasks/0/{n}", b"x")) for n in range(20)]
    await asyncio.sleep(0)
    await blobs.close()

    assert all(isinstance(answer, Won) for answer in await asyncio.gather(*begun))


async def test_a_cancelled_caller_does_not_disturb_the_others(blobs: Blobs):
    tasks = [asyncio.create_task(blobs.create(f"tasks/0/{n}", b"x")) for n in range(20)]
    await asyncio.sleep(0)
    tasks[3].cancel()

    answers = await asyncio.gather(*tasks, return_exceptions=True)

    assert isinstance(answers[3], asyncio.CancelledError)
    assert sum(isinstance(answer, Won) for answer in answers) == 19


async def test_versions_go_on_counting_after_a_delete(blobs: Blobs):
    first = checked_cast(Won, await blobs.create("tasks/0/a", b"1"))
    await blobs.swap("tasks/0/a", b"2", first.tag)
    await blobs.delete(["tasks/0/a"])
    await blobs.create("tasks/0/a", b"3")

    page = await blobs.versions("tasks/0/a")
    assert [version.id for version in page.versions] == ["3", "2", "1"]
    assert the(await blobs.get_version("tasks/0/a", "2")).body == b"2"
    assert await blobs.get_version("tasks/0/a", "9") is None


async def test_versions_are_kept_only_where_asked_for(blobs: Blobs, driver: DirectoryBlobs):
    for _ in range(3):
        await blobs.put("ready/a.1", os.urandom(8))

    assert len((await blobs.versions("ready/a.1")).versions) == 1
    assert files_below(Path(driver.home.own, "versions")) == set()


async def test_a_given_clock_is_the_stores_clock(tmp_path):
    clock = VirtualClock()
    blobs = Blobs(DirectoryBlobs(tmp_path / "s", clock=clock))
    await blobs.connect()
    clock.advance(5)
    await blobs.put("a/b.c", b"x")

    assert await blobs.now() == clock() == the(await blobs.get("a/b.c")).modified
    assert (await blobs.list("")).entries[0].modified == clock()
    await blobs.close()


# Waiting


async def test_a_change_by_another_process_is_noticed(blobs: Blobs, driver: DirectoryBlobs):
    mark = blobs.mark("ready/")
    assert not await blobs.wait_for_change("ready/", 0.01)
    other = Blobs(DirectoryBlobs(driver.home.root))
    await other.connect()

    waiting = asyncio.create_task(blobs.wait_for_change("ready/", 60))
    await asyncio.sleep(0.01)
    await other.put("ready/a", b"x")

    assert await waiting
    assert await blobs.wait_for_change("ready/", 60, since=mark), "what happened since the mark is not missed"
    assert not await blobs.wait_for_change("tasks/", 0.01, since=blobs.mark("tasks/"))
    assert not await blobs.wait_for_change("", 0.01, since=blobs.mark(""))
    await other.close()


async def test_without_a_watcher_the_poll_notices(tmp_path, monkeypatch):
    monkeypatch.setattr("millrace.store.object.directory.change_signal.find_spec", lambda name: None)
    ringing, waiting = ChangeSignal(str(tmp_path)), ChangeSignal(str(tmp_path))
    heard = asyncio.create_task(waiting.wait("ready/", 60, None))
    await asyncio.sleep(0.01)

    ringing.signal(["ready/0/a"])

    assert await heard
    ringing.close()
    waiting.close()


# Processes


async def test_a_forked_child_writes_with_threads_and_locks_of_its_own(blobs: Blobs, driver: DirectoryBlobs):
    await blobs.create("tasks/0/parent", b"x")
    code = f"""
import asyncio, os
from millrace.store.object.blobs import Blobs
from millrace.store.object.directory import DirectoryBlobs
async def write(blobs, key): os.write(1, type(await blobs.create(key, b"x")).__name__.encode() + b" ")
blobs = Blobs(DirectoryBlobs({driver.home.root!r}))
async def main():
    await blobs.connect()
    await write(blobs, "tasks/0/before")
asyncio.run(main())
child = os.fork()
asyncio.run(write(blobs, "tasks/0/after-" + ("parent" if child else "child")))
if child: os.waitpid(child, 0)
os._exit(0)
"""
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )

    assert done.stdout.split() == ["Won", "Won", "Won"], done.stderr
    assert len((await blobs.list("tasks/0/")).entries) == 4


@pytest.mark.parametrize("level", ["full", "relaxed"])
async def test_a_killed_writer_leaves_the_old_object_or_the_new_one(tmp_path, level):
    """kill -9 at a random moment, several times over: nothing torn, nothing that was answered is lost."""
    root, chance = tmp_path / "store", random.Random(4)
    acknowledged: dict[int, int] = {}
    for _ in range(4):
        with subprocess.Popen(
            [sys.executable, str(PROGRAMS / "kill_writer.py"), str(root), level], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            until = chance.randrange(10, 60)
            for number, line in enumerate(process.stdout):
                me, step = map(int, line.split())
                acknowledged[me] = step
                if number == until:
                    time.sleep(chance.random() * 0.01)
                    process.send_signal(signal.SIGKILL)
        assert process.returncode == -signal.SIGKILL

        driver = DirectoryBlobs(root)
        await driver.connect()
        found = await Blobs(driver).get_many([f"tasks/{me % 2}/{me}.json" for me in acknowledged])
        listed = await Blobs(driver).list("")
        await driver.close()
        for blob, (me, step) in zip(found, acknowledged.items(), strict=True):
            assert blob is not None, me
            first, _, last = blob.body.partition(b" ")
            assert int(first) == int(last.rpartition(b" ")[2])
            assert int(first) in (step, step + 1)
        assert len(listed.entries) >= len(found) and driver.reports == []
    assert len(acknowledged) == 8


@pytest.mark.parametrize("key", ["tasks/0/a", "control/a"])  # whose versions are appended, and replaced by a rename
@pytest.mark.parametrize("first", [True, False])
async def test_a_writer_that_ends_at_any_system_call_leaves_the_old_object_or_the_new_one(
    tmp_path, monkeypatch, first, key
):
    """Every call that changes the disk is a crash point; all of them are visited, on a create and on a swap."""

    class Ended(BaseException):
        pass

    calls, limit = 0, 0
    changing = ("open", "write", "pwrite", "ftruncate", "fsync", "link", "rename", "unlink", "mkdir", "utime")

    def counted(real):
        def call(*arguments, **options):
            nonlocal calls
            calls += 1
            if calls == limit:
                raise Ended
            return real(*arguments, **options)

        return call

    seen, point = [], 0
    while True:
        point += 1
        root = tmp_path / f"store-{point}"
        blobs = Blobs(DirectoryBlobs(root, keep_versions=["tasks/"]))
        await blobs.connect()
        tag = "" if first else checked_cast(Won, await blobs.create(key, b"old")).tag
        calls, limit = 0, point
        with monkeypatch.context() as patched:
            for name in changing:
                patched.setattr(os, name, counted(getattr(os, name)))
            try:
                await (blobs.create(key, b"new") if first else blobs.swap(key, b"new", tag))
                ended = False
            except Ended:
                ended = True
        await blobs.close()

        driver = DirectoryBlobs(root, keep_versions=["tasks/"])
        again = Blobs(driver)
        await again.connect()
        found = await again.get(key)
        seen.append(found and found.body)
        answer = await (again.swap(key, b"later", found.tag) if found else again.create(key, b"later"))
        assert isinstance(answer, Won) and driver.reports == []
        await again.close()
        if not ended:
            break

    old = None if first else b"old"
    assert set(seen) == {old, b"new"} and len(seen) > (10 if first else 6)
    assert seen == sorted(seen, key=lambda body: body == b"new"), "once it is there it stays"


async def test_processes_that_race_for_one_object_lose_no_update(tmp_path):
    code = f"""
import asyncio, os
from millrace.store.object.blobs import Blobs, Won
from millrace.store.object.directory import DirectoryBlobs
async def main():
    blobs = Blobs(DirectoryBlobs({str(tmp_path / "s")!r}, durability="relaxed"))
    await blobs.connect()
    await blobs.create("control/n", b"0")
    for _ in range(100):
        while True:
            blob = await blobs.get("control/n")
            body = b"%d %b" % (int(blob.body.split()[0]) + 1, os.urandom(8).hex().encode())
            if isinstance(await blobs.swap("control/n", body, blob.tag), Won): break
    await blobs.close()
asyncio.run(main())
"""
    racers = [await asyncio.create_subprocess_exec(sys.executable, "-c", code) for _ in range(3)]
    assert [await racer.wait() for racer in racers] == [0, 0, 0]

    blobs = Blobs(DirectoryBlobs(tmp_path / "s"))
    await blobs.connect()
    found = await blobs.get("control/n")
    await blobs.close()
    assert found is not None and found.body.split()[0] == b"300"


async def test_a_page_costs_nothing_for_what_lies_elsewhere(blobs: Blobs, monkeypatch):
    await blobs.write_many(
        [Write(f"tasks/{n % 16:x}/{n}", b"x", Expect.ANYTHING, durable=False) for n in range(200)]
        + [Write(f"ready/0/q/{n // 10}/{n:03}.x", b"x", Expect.ANYTHING, durable=False) for n in range(100)]
    )
    visited: list[str] = []
    real = os.scandir
    monkeypatch.setattr(os, "scandir", noted(real, lambda path: visited.append(str(path))))
    monkeypatch.setattr(os, "open", lambda *_, **__: pytest.fail("a listing reads no file"))

    page = await blobs.list("ready/0/q/", after="ready/0/q/7/074.x", limit=10)

    assert page.entries[0].key == "ready/0/q/7/075.x" and page.truncated
    assert [path.rpartition("ready/0/q")[2] for path in visited] == ["", "/7", "/8"]
