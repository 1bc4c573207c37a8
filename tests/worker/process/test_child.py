"""One child as its worker sees it: what it says last counts, in whichever order the news of its death arrives."""

from __future__ import annotations

import asyncio
import socket
from types import SimpleNamespace

import pytest

from millrace.worker.process.child import Child
from millrace.worker.process.death import Death
from millrace.worker.process.wire import AttemptDone, CallEnded, ChildRecord, Frames, Progress, ToWorker, Work, frame

DIED = Death(9, memory=64 * 2**20)  # by SIGKILL


async def connected() -> tuple[Child, socket.socket]:
    loop = asyncio.get_running_loop()
    child = Child(loop)
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    await loop.create_unix_connection(lambda: child, sock=ours)
    return child, theirs


@pytest.mark.parametrize("death_first", [True, False])
async def test_a_result_that_was_sent_before_the_death_counts(death_first: bool):
    child, theirs = await connected()
    doing = asyncio.create_task(child.do(Work([], [], 30), ()))
    await asyncio.sleep(0)

    if death_first:
        child._exited(DIED)
    theirs.sendall(frame(CallEnded([AttemptDone("returned", result=b"1")], 5)))
    theirs.close()
    answer = await doing
    if not death_first:
        child._exited(DIED)

    assert isinstance(answer, CallEnded)
    assert answer.ends[0].result == b"1"
    assert await child.died == DIED


async def test_a_death_without_last_words_is_the_answer():
    child, theirs = await connected()
    doing = asyncio.create_task(child.do(Work([], [], 30), ()))
    await asyncio.sleep(0)

    theirs.close()
    child._exited(DIED)

    assert await doing == DIED


async def test_progress_goes_to_the_run_it_is_about():
    child, theirs = await connected()
    runs = [SimpleNamespace(progress=None), SimpleNamespace(progress=None)]
    doing = asyncio.create_task(child.do(Work([], [], 30), runs))
    await asyncio.sleep(0)

    theirs.sendall(frame(Progress(1, b"50")) + frame(Progress(7, b"nobody")) + frame(CallEnded([], 0)))
    await doing

    assert [run.progress for run in runs] == [None, b"50"]
    theirs.close()
    child._exited(DIED)
    await child.died


def test_frames_may_arrive_in_any_pieces():
    messages: list[ToWorker] = [
        Progress(0, b"x" * 300),
        ChildRecord(20, "text", {"a": 1}),
        CallEnded([AttemptDone("snooze", delay=5)], 7),
    ]
    data = b"".join(map(frame, messages))

    for size in (1, 3, 7, 1_000):
        frames = Frames()
        pieces = [data[start : start + size] for start in range(0, len(data), size)]
        assert [message for piece in pieces for message in frames.feed(piece)] == messages


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (9, "was killed by SIGKILL; it held 64 MiB of memory at its peak"),
        (11, "was killed by SIGSEGV; it held 64 MiB of memory at its peak"),
        (3 << 8, "exited with code 3; it held 64 MiB of memory at its peak"),
        (None, "ended with an unknown exit status; it held 64 MiB of memory at its peak"),
    ],
)
def test_a_death_is_put_into_words(status: int | None, said: str):
    assert str(Death(status, DIED.memory)) == said
