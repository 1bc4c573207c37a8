"""The directory driver: the revisions of an object in one file, what a power loss leaves of them, and markers."""

import asyncio
import errno
import os
import threading
from pathlib import Path

import pytest

from millrace.domain.errors import StoreError
from millrace.store.object.blobs import Blobs, LostReply, Won, Write
from millrace.store.object.directory import DirectoryBlobs, file_format, object_files
from millrace.store.object.directory import folder as home
from millrace.store.object.directory.file_format import newest, seal
from millrace.store.object.directory.locks import Locks, shard_of
from millrace.store.object.driver import Blob, Expect, Refused, Want, WriteReply
from tests.narrowing import checked_cast, the
from tests.object.noted import noted


@pytest.fixture
async def blobs(driver: DirectoryBlobs):
    return Blobs(driver)


@pytest.fixture
async def job(blobs: Blobs, driver: DirectoryBlobs):
    """An object with one durable revision, and its file."""
    answer = checked_cast(Won, await blobs.create("tasks/0/job.json", b"durable"))
    return answer.tag, Path(driver.home.root, "tasks/0/job.json")


async def test_a_swap_makes_no_new_file(blobs: Blobs, job: tuple[str, Path]):
    tag, file = job
    before = file.stat().st_ino
    for number in range(5):
        answer = checked_cast(Won, await blobs.swap("tasks/0/job.json", b"%d" % number, tag, durable=number % 2 == 0))
        tag = answer.tag

    assert file.stat().st_ino == before
    assert [line for line in file.read_bytes().splitlines() if not line.startswith(b"#")] == [
        b"durable", b"0", b"1", b"2", b"3", b"4",
    ]  # fmt: skip
    assert the(await blobs.get("tasks/0/job.json")).tag == tag


async def test_an_object_that_a_power_loss_cut_short_is_what_it_was_before(
    blobs: Blobs, driver: DirectoryBlobs, job: tuple[str, Path]
):
    """A swap that did not wait for the disk went behind one that did: what was there counts again."""
    first, file = job
    second = checked_cast(Won, await blobs.swap("tasks/0/job.json", b"relaxed", first, durable=False))
    content = file.read_bytes()
    start = content.index(b"relaxed")

    for cut in range(start, len(content)):
        for lost in (content[:cut], content[:cut] + bytes(len(content) - cut)):
            file.write_bytes(lost)
            blob = the(await blobs.get("tasks/0/job.json"))
            assert (blob.body, blob.tag) == (b"durable", first), cut
    assert await blobs.swap("tasks/0/job.json", b"late", second.tag) == LostReply()
    assert isinstance(await blobs.swap("tasks/0/job.json", b"again", first), Won)
    assert the(await blobs.get("tasks/0/job.json")).body == b"again" and driver.reports == []


async def test_a_file_that_others_will_write_into_has_a_durable_name_from_the_start(
    blobs: Blobs, driver: DirectoryBlobs, monkeypatch
):
    """Also when a long file is followed by a new one, and whatever the write says of itself."""
    flushed: list[str] = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", noted(real, lambda file: flushed.append(os.readlink(f"/proc/self/fd/{file}"))))
    monkeypatch.setattr(object_files, "LONGEST_FILE", 500)
    folder = f"{driver.home.root}/tasks/0"

    answer = checked_cast(Won, await blobs.create("tasks/0/job.json", b"x" * 150, durable=False))
    assert folder in flushed and any("/tmp/" in path for path in flushed)
    flushed.clear()
    answer = checked_cast(Won, await blobs.swap("tasks/0/job.json", b"y" * 150, answer.tag, durable=False))
    assert flushed == []
    await blobs.swap("tasks/0/job.json", b"z" * 150, answer.tag, durable=False)

    assert folder in flushed and f"{driver.home.own}/versions/tasks/0/job.json" in flushed


async def test_nobody_sees_a_durable_swap_before_it_is_on_the_disk(
    blobs: Blobs, driver: DirectoryBlobs, job: tuple[str, Path], monkeypatch
):
    seen: list[bytes] = []
    real = os.fsync

    def fsync(file: int) -> None:
        seen.append(newest("tasks/0/job.json", job[1].read_bytes()).body)
        real(file)

    monkeypatch.setattr(os, "fsync", fsync)
    await blobs.swap("tasks/0/job.json", b"next", job[0])

    assert seen == [b"durable"]
    assert the(await blobs.get("tasks/0/job.json")).body == b"next"


async def test_what_a_dead_writer_flushed_but_never_let_count_is_written_over(
    blobs: Blobs, driver: DirectoryBlobs, job: tuple[str, Path]
):
    tag, file = job
    file.write_bytes(file.read_bytes() + seal("tasks/0/job.json", b"x" * 300, 2, 0, file_format.this_boot())[0])

    assert the(await blobs.get("tasks/0/job.json")).body == b"durable"
    assert isinstance(await blobs.swap("tasks/0/job.json", b"next", tag), Won)
    assert the(await blobs.get("tasks/0/job.json")).body == b"next"
    assert [version.id for version in (await blobs.versions("tasks/0/job.json")).versions] == ["2", "1"]


async def test_what_was_flushed_counts_after_the_machine_was_started_again(
    blobs: Blobs, driver: DirectoryBlobs, job: tuple[str, Path], monkeypatch
):
    """It may have been acknowledged: the word that says so need not have reached the disk."""
    file = job[1]
    content, tag = seal("tasks/0/job.json", b"acknowledged", 2, 0, file_format.this_boot())
    file.write_bytes(file.read_bytes() + content)
    for module in (file_format, object_files):
        monkeypatch.setattr(module, "this_boot", lambda: b"00000000")

    assert the(await blobs.get("tasks/0/job.json")).tag == tag
    assert isinstance(await blobs.swap("tasks/0/job.json", b"next", tag), Won)


async def test_on_a_machine_that_does_not_name_its_boots_both_halves_are_flushed(
    blobs: Blobs, driver: DirectoryBlobs, job: tuple[str, Path], monkeypatch
):
    for module in (file_format, object_files):
        monkeypatch.setattr(module, "this_boot", lambda: file_format.NO_BOOT)
    flushed: list[bytes] = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", noted(real, lambda file: flushed.append(job[1].read_bytes())))

    await blobs.swap("tasks/0/job.json", b"next", job[0])

    assert [file_format.NO_BOOT in content for content in flushed] == [True, False]
    assert the(await blobs.get("tasks/0/job.json")).body == b"next"


async def test_a_flush_that_fails_leaves_what_was_there(blobs: Blobs, job: tuple[str, Path], monkeypatch):
    def fails(file: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fails)
        with pytest.raises(StoreError, match="Input/output error"):
            await blobs.swap("tasks/0/job.json", b"next", job[0])

    assert the(await blobs.get("tasks/0/job.json")).body == b"durable"
    assert isinstance(await blobs.swap("tasks/0/job.json", b"next", job[0]), Won)


@pytest.mark.parametrize("second", [b"1", b"with\na line break", b"x" * 40_000])
async def test_of_two_swaps_in_one_batch_one_wins(driver: DirectoryBlobs, job: tuple[str, Path], second):
    """Also when the second one would go into a file of its own."""
    answers = await driver.write([Write("tasks/0/job.json", body, job[0]) for body in (b"0", second, b"2")])

    assert [type(answer) for answer in answers] == [WriteReply, Refused, Refused]
    [found] = await driver.read([Want("tasks/0/job.json")])
    blob = checked_cast(Blob, found)
    assert (blob.body, blob.tag) == (b"0", checked_cast(WriteReply, answers[0]).tag)


async def test_a_swap_and_a_delete_in_one_batch_happen_one_after_the_other(
    driver: DirectoryBlobs, job: tuple[str, Path]
):
    outcomes = await driver._commit(
        [Write("tasks/0/job.json", b"0", job[0]), object_files.Drop("tasks/0/job.json")], True
    )

    assert [type(outcome) for outcome in outcomes] == [WriteReply, WriteReply]
    assert await driver.read([Want("tasks/0/job.json")]) == [None]
    assert [version.id for version in (await driver.versions("tasks/0/job.json", None, 10)).versions] == ["2", "1"]


@pytest.mark.parametrize("trouble", [errno.EMFILE, errno.EIO, errno.EACCES])
async def test_a_file_that_cannot_be_read_just_now_stays_where_it_is(
    blobs: Blobs, driver: DirectoryBlobs, job: tuple[str, Path], monkeypatch, trouble
):
    real = os.open

    def fails(path, *arguments, **options):
        if str(path).endswith("job.json"):
            raise OSError(trouble, os.strerror(trouble))
        return real(path, *arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", fails)
        with pytest.raises(StoreError):
            await driver.read([Want("tasks/0/job.json")])

    assert the(await blobs.get("tasks/0/job.json")).body == b"durable" and driver.reports == []


async def test_a_word_that_was_put_in_halfway_counts(blobs: Blobs, job: tuple[str, Path]):
    """A page ends in the middle of it, and only one of the two reached the disk: it was flushed before, and may have
    been acknowledged."""
    tag, file = job
    word = file_format.this_boot()
    for cut in range(9):
        content, newer = seal("tasks/0/job.json", b"acknowledged", 2, 0, file_format.LANDED[:cut] + word[cut:])
        whole = file.read_bytes()
        file.write_bytes(whole + content)
        assert the(await blobs.get("tasks/0/job.json")).tag == (newer if cut else tag)
        file.write_bytes(whole)


async def test_a_revision_whose_body_was_lost_does_not_stop_the_object(blobs: Blobs, job: tuple[str, Path]):
    """Its line reached the disk and what stands before it did not."""
    tag, file = job
    content = seal("tasks/0/job.json", b"x" * 600, 2, 0)[0]
    file.write_bytes(file.read_bytes() + bytes(300) + content[300:])

    assert the(await blobs.get("tasks/0/job.json")).tag == tag
    assert isinstance(await blobs.swap("tasks/0/job.json", b"next", tag), Won)


async def test_a_folder_above_that_could_not_be_flushed_is_flushed_next_time(
    blobs: Blobs, driver: DirectoryBlobs, monkeypatch
):
    real, fails = home.sync_folder, True

    def flush(path: str) -> int:
        if fails and path.endswith("/tasks"):
            raise OSError(errno.EIO, "Input/output error")
        flushed.append(path)
        return real(path)

    flushed: list[str] = []
    monkeypatch.setattr("millrace.store.object.directory.object_files.sync_folder", flush)
    with pytest.raises(StoreError):
        await blobs.create("tasks/0/a", b"x")
    fails = False
    await blobs.create("tasks/0/b", b"x")

    assert f"{driver.home.root}/tasks" in flushed


async def test_large_bodies_are_not_written_in_the_event_loop(blobs: Blobs, monkeypatch):
    real = os.write
    where: list[threading.Thread] = []
    monkeypatch.setattr(os, "write", noted(real, lambda file, data: where.append(threading.current_thread())))

    await blobs.write_many([Write("data/small", b"x", Expect.ANYTHING, durable=False)])
    await blobs.write_many([Write("data/large", b"x" * 300_000, Expect.ANYTHING, durable=False)])

    assert where[0] is threading.main_thread() and threading.main_thread() not in where[1:]


async def test_a_listing_that_fails_says_so_in_words(blobs: Blobs, monkeypatch):
    def fails(path: str) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "scandir", fails)
    with pytest.raises(StoreError, match="Too many open files"):
        await blobs.list("tasks/")


async def test_nothing_is_flushed_in_the_event_loop(
    blobs: Blobs, driver: DirectoryBlobs, job: tuple[str, Path], monkeypatch
):
    """Also not when a swap that need not be durable begins a new file."""
    monkeypatch.setattr(object_files, "LONGEST_FILE", 400)
    real = os.fsync
    where: list[threading.Thread] = []
    monkeypatch.setattr(os, "fsync", noted(real, lambda file: where.append(threading.current_thread())))
    tag = job[0]
    for number in range(6):
        tag = checked_cast(Won, await blobs.swap("tasks/0/job.json", b"%d" % number * 90, tag, durable=False)).tag

    assert where and threading.main_thread() not in where


async def test_a_long_file_is_followed_by_a_new_one_and_no_version_is_lost(
    blobs: Blobs, driver: DirectoryBlobs, job: tuple[str, Path], monkeypatch
):
    monkeypatch.setattr(object_files, "LONGEST_FILE", 1_000)
    tag = job[0]
    bodies = [b"durable", *(b"%d:" % n + b"y" * (n * 7 % 90) for n in range(40)), b"with\na line break", b"z" * 600]
    for body in bodies[1:]:
        tag = checked_cast(Won, await blobs.swap("tasks/0/job.json", body, tag, durable=False)).tag

    page = await blobs.versions("tasks/0/job.json")
    assert [version.id for version in page.versions] == [str(n) for n in range(len(bodies), 0, -1)]
    kept = [await blobs.get_version("tasks/0/job.json", version.id) for version in page.versions]
    assert [the(blob).body for blob in kept] == bodies[::-1]
    assert [version.size for version in page.versions] == [len(body) for body in bodies[::-1]]
    assert job[1].stat().st_size < 1_100
    assert len(list(Path(driver.home.own, "versions/tasks/0/job.json").iterdir())) >= 4


async def test_objects_that_change_often_are_appended_to_without_keeping_their_versions(tmp_path, monkeypatch):
    monkeypatch.setattr(object_files, "LONGEST_FILE", 1_000)
    driver = DirectoryBlobs(tmp_path / "s", keep_versions=["tasks/"], append=["lines/"])
    await driver.connect()
    blobs = Blobs(driver)
    tag = checked_cast(Won, await blobs.create("lines/q/g.json", b"first")).tag
    file = Path(driver.home.root, "lines/q/g.json")
    made = file.stat().st_ino
    tag = checked_cast(Won, await blobs.swap("lines/q/g.json", b"second", tag)).tag
    assert file.stat().st_ino == made, "a swap made a new file"

    for number in range(40):
        tag = checked_cast(Won, await blobs.swap("lines/q/g.json", b"%d" % number * 30, tag)).tag
        assert the(await blobs.get("lines/q/g.json")).body == b"%d" % number * 30
        assert [item.size for item in (await blobs.list("lines/")).entries] == [len(b"%d" % number * 30)]
        assert file.stat().st_size <= 1_000

    assert isinstance(await blobs.swap("lines/q/g.json", b"late", "1-0"), LostReply)
    assert not Path(driver.home.own, "versions").exists() or not any(Path(driver.home.own, "versions").rglob("*.json"))
    assert await blobs.remove("lines/q/g.json", tag) and not file.exists()
    await driver.close()


async def put_markers(blobs: Blobs, keys: list[str]) -> None:
    await blobs.write_many([Write(key, b"", Expect.ANYTHING, durable=False) for key in keys])


async def test_markers_are_names_of_one_empty_file(tmp_path, monkeypatch):
    driver = DirectoryBlobs(tmp_path / "s", markers=["ready/"])
    await driver.connect()
    blobs = Blobs(driver)
    await put_markers(blobs, [f"ready/{n}/a.{n}" for n in range(20)])

    files_there = [path for path in Path(driver.home.root, "ready").rglob("*") if path.is_file()]
    assert len(files_there) == 20 and len({path.stat().st_ino for path in files_there}) == 1
    monkeypatch.setattr(object_files, "MARKS_TOGETHER", 0)
    os.unlink(next(Path(driver.home.own, "tmp").iterdir()))
    await put_markers(blobs, ["ready/0/a.0", "ready/0/b.0"])
    assert len((await blobs.list("ready/")).entries) == 21

    await driver.close()
    assert not any(Path(driver.home.own, "tmp").iterdir())


async def test_as_many_markers_as_one_file_can_have_names_are_followed_by_another_file(tmp_path, monkeypatch):
    driver = DirectoryBlobs(tmp_path / "s", markers=["ready/"])
    await driver.connect()
    real, names = os.link, 0

    def link(source: str, path: str) -> None:
        nonlocal names
        names += 1
        if names % 3 == 0:
            raise OSError(errno.EMLINK, "Too many links")
        real(source, path)

    monkeypatch.setattr(os, "link", link)
    await put_markers(Blobs(driver), [f"ready/a.{n}" for n in range(9)])

    assert len({path.stat().st_ino for path in Path(driver.home.root, "ready").iterdir()}) == 5
    await driver.close()


async def test_who_would_have_to_wait_for_a_lock_does_so_in_another_thread(
    blobs: Blobs, driver: DirectoryBlobs, job: tuple[str, Path]
):
    """The loop goes on meanwhile."""
    locks = Locks(f"{driver.home.own}/locks")
    with locks.held(shard_of("tasks/0/job.json")):
        swap = asyncio.create_task(blobs.swap("tasks/0/job.json", b"next", job[0], durable=False))
        await asyncio.sleep(0.05)
        assert not swap.done()
    assert isinstance(await swap, Won)
    locks.close()
