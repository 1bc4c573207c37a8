"""`millrace move` that is killed, aborted, or run twice at once: no job can be claimed in both stores."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from millrace.domain.errors import InvalidInput, StoreClosed, StoreError
from millrace.domain.settings import Closing
from millrace.store import transfer
from millrace.store.memory import MemoryStore
from millrace.store.protocol import Store
from millrace.store.transfer import StoreTransfer, abort, closed
from millrace.testing.clock import VirtualClock
from millrace.testing.conformance.scenes import complete, put, take, take_ids
from millrace.testing.conformance.transfer_scenes import compared, fill
from tests.store.interrupted import Killed, claimable_in, interposed, is_paused, killed_after


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "LOOK", 0.01)


def two_stores(clock: VirtualClock) -> tuple[Any, Any]:
    return MemoryStore("memory://source", clock=clock), MemoryStore("memory://target", clock=clock)


def opened_again(*stores: Any) -> None:
    for store in stores:
        store.__class__ = MemoryStore


async def stage_of(store: Store) -> str:
    why: Closing | None = await closed(store)
    return "open" if why is None else why.stage


async def test_a_move_that_is_killed_at_any_call_is_continued_by_the_next(clock: VirtualClock) -> None:
    """After every kill, a job can be claimed in one store at most, and the next move finishes."""
    kills = 0
    for calls in range(1, 200):
        source, target = two_stores(clock)
        await fill(source, VirtualClock(clock()))
        wanted, counts = await compared(source), await source.count()
        dying = source if calls % 3 else target
        killed_after(dying, (calls + 2) // 3 if dying is target else calls)
        try:
            await StoreTransfer(source, target, batch=20).run()
            done = True
        except Killed:
            done, kills = False, kills + 1
        opened_again(dying)
        assert await claimable_in(source) + await claimable_in(target) <= 1
        await StoreTransfer(source, target, batch=20).run()
        assert await compared(target) == wanted
        assert await target.count() == counts
        if done and calls > 60:
            break
    assert kills > 15


async def test_an_abort_that_is_killed_at_any_call_is_continued_by_the_next(clock: VirtualClock) -> None:
    """After every kill, no job can be claimed in the target, and no move begins until the abort is complete."""
    stages = set()
    for moved, aborted in ((moved, aborted) for moved in range(1, 9) for aborted in range(1, 16)):
        source, target = two_stores(clock)
        await fill(source, VirtualClock(clock()))
        wanted = await compared(source)
        killed_after(target, moved)
        with suppress(Killed):
            await StoreTransfer(source, target, batch=20).run()
        opened_again(target)
        if await stage_of(source) == "moved":
            break
        killed_after(source, aborted)
        with suppress(Killed):
            await abort(source)
        opened_again(source)
        stages.add(await stage_of(source))
        if await stage_of(source) == "aborting":
            with pytest.raises(InvalidInput, match="--abort again"):
                await StoreTransfer(source, target).run()
        await abort(source)
        assert await compared(source) == wanted
        assert await claimable_in(source) and not await claimable_in(target)
    assert stages == {"draining", "frozen", "aborting", "open"}


@pytest.mark.parametrize("method", ["control", "import_records", "export"])
async def test_an_abort_at_any_call_of_a_mover_stops_the_mover(clock: VirtualClock, method: str) -> None:
    """Whatever the mover was about to do, jobs can be claimed in the source alone, or in the target alone. An aborted
    source is as it was: no queue is paused that was not paused before.
    """
    stopped: list[StoreError] = []
    for number in range(1, 60):
        source, target = two_stores(clock)
        await fill(source, VirtualClock(clock()))
        wanted = await compared(source)
        aborted: list[bool] = []

        async def end(source: Any = source, aborted: list[bool] = aborted) -> None:
            with suppress(InvalidInput):  # the move is complete
                aborted.append(await abort(source))

        interposed(target if method == "import_records" else source, method, number, end)
        try:
            await StoreTransfer(source, target, batch=20).run()
        except StoreError as error:
            stopped.append(error)
        assert await claimable_in(source) + await claimable_in(target) == 1
        assert await claimable_in(source) == (aborted == [True])
        assert aborted != [True] or await compared(source) == wanted
    assert len(stopped) > 3
    assert all(isinstance(each, StoreClosed) or "another `millrace move`" in str(each) for each in stopped)


async def test_a_mover_that_waits_for_running_jobs_stops_after_an_abort_and_pauses_nothing(
    clock: VirtualClock,
) -> None:
    source, target = two_stores(clock)
    await put(source)
    job = await take(source)
    await put(source)
    moving = asyncio.create_task(StoreTransfer(source, target).run())
    while not await is_paused(source, "default"):
        await asyncio.sleep(0.01)
    await abort(source)
    with pytest.raises(StoreError, match="another `millrace move`"):
        await asyncio.wait_for(moving, 30)

    assert not await is_paused(source, "default")
    assert len(await take_ids(source)) == 1
    await complete(source, job)


@pytest.mark.parametrize("method", ["control", "import_records"])
async def test_a_second_mover_stops_when_the_first_has_finished(clock: VirtualClock, method: str) -> None:
    """It overwrites no stage, and adds no job again that has ended in the opened target and was deleted."""
    for number in range(1, 12):
        source, target = two_stores(clock)
        for _ in range(10):
            await put(source)
        ended: list[str] = []

        async def finish(source: Any = source, target: Any = target, ended: list[str] = ended) -> None:
            await StoreTransfer(source, target, batch=3).run()
            job = await take(target)
            await complete(target, job)
            await target.delete([job.id])
            ended.append(job.id)

        interposed(target, method, number, finish)
        with suppress(StoreError):
            await StoreTransfer(source, target, batch=3).run()
        opened_again(target)
        await StoreTransfer(source, target, batch=3).run()
        assert await stage_of(source) == "moved"
        assert await target.get(ended) == [None] * len(ended)
        assert len(await take_ids(target, limit=20)) == 10 - len(ended)


async def test_a_mover_does_not_begin_with_a_source_that_another_has_just_taken(clock: VirtualClock) -> None:
    source, target = two_stores(clock)
    third = MemoryStore("memory://third", clock=clock)
    await put(source)

    async def take_it() -> None:
        opened_again(source)
        await StoreTransfer(source, third).run()

    interposed(source, "control", 1, take_it)
    with pytest.raises(StoreError, match="another `millrace move`"):
        await StoreTransfer(source, target).run()
    assert await claimable_in(third) and not await claimable_in(target)


async def test_a_target_that_was_replaced_after_the_move_is_refused(clock: VirtualClock) -> None:
    source, target = two_stores(clock)
    await put(source)
    await StoreTransfer(source, target).run()
    replaced = MemoryStore("memory://target", clock=clock)
    for attempt in (StoreTransfer(source, replaced).run, StoreTransfer(source, replaced).plan):
        with pytest.raises(InvalidInput, match="replaced or emptied.*--abort --force"):
            await attempt()


async def test_a_moved_source_is_opened_by_force_as_it_was(clock: VirtualClock) -> None:
    source, target = two_stores(clock)
    spec = await put(source)
    await StoreTransfer(source, target).run()

    with pytest.raises(InvalidInput, match="--force"):
        await abort(source)
    assert await abort(source, force=True) is True
    assert await take_ids(source) == [spec.id]


async def test_a_store_that_received_a_move_can_be_moved_on(clock: VirtualClock) -> None:
    source, target = two_stores(clock)
    spec = await put(source)
    await StoreTransfer(source, target).run()
    third = MemoryStore("memory://third", clock=clock)
    await StoreTransfer(target, third).run()

    assert await take_ids(third) == [spec.id]
    with pytest.raises(StoreClosed, match="moved to memory://third"):
        await put(target)
