"""Concurrent enqueues share calls, and do not affect each other."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from millrace.domain.errors import QueueFull, StoreError
from millrace.domain.job import Spec, State
from millrace.domain.request import Enqueued
from millrace.store.shared_enqueues import SharedEnqueues
from millrace.testing.builders import a_spec


class Server:
    """Records the calls, which wait until `reply_to_all`. An id that contains "bad" is refused and cannot be shared."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self._replies: list[asyncio.Event] = []
        self.lost = False
        self.enqueues = SharedEnqueues(self._alone, self._together)

    async def _alone(self, spec: Spec) -> Enqueued:
        await self._reply_to([spec])
        if "bad" in spec.id:
            raise QueueFull("default", 1, 1)
        return Enqueued("queued", spec.id, 1, 1, State.WAITING)

    async def _together(self, specs: Sequence[Spec]) -> list[Enqueued | None]:
        await self._reply_to(specs)
        answers = [Enqueued("queued", spec.id, seq, 1, State.WAITING) for seq, spec in enumerate(specs)]
        return [None if "bad" in answer.id else answer for answer in answers]

    async def _reply_to(self, specs: Sequence[Spec]) -> None:
        self.calls.append([spec.id for spec in specs])
        replied = asyncio.Event()
        self._replies.append(replied)
        await replied.wait()
        if self.lost:
            raise StoreError("the server does not answer")

    def put(self, job_id: str) -> asyncio.Task[Enqueued]:
        return asyncio.ensure_future(self.enqueues.put(a_spec(id=job_id)))

    async def until(self, calls: int) -> None:
        async with asyncio.timeout(60):
            while len(self.calls) < calls:
                await asyncio.sleep(0)

    async def reply_to_all(self, *tasks: asyncio.Task[Enqueued]) -> None:
        """Reply to each call until these callers have their answers."""
        async with asyncio.timeout(60):
            while not all(task.done() for task in tasks):
                for replied in self._replies:
                    replied.set()
                await asyncio.sleep(0)


@pytest.fixture
async def server() -> Server:
    return Server()


async def test_callers_that_come_while_a_call_is_on_its_way_share_the_next_one(server: Server) -> None:
    tasks = [server.put(f"job-{n}") for n in range(50)]
    await server.until(calls=2)
    await server.reply_to_all(*tasks)

    assert server.calls == [["job-0"], [f"job-{n}" for n in range(1, 50)]]
    assert [task.result().id for task in tasks] == [f"job-{n}" for n in range(50)]


async def test_at_most_two_calls_are_on_their_way_while_replies_are_quick(server: Server) -> None:
    first = [server.put("a"), server.put("b")]
    await server.until(calls=2)
    second = [server.put("c"), server.put("d")]
    for _ in range(10):
        await asyncio.sleep(0)
    sent_before_a_reply = list(server.calls)
    await server.reply_to_all(*first, *second)

    assert sent_before_a_reply == [["a"], ["b"]]
    assert server.calls[2:] == [["c", "d"]]


async def test_a_reply_that_takes_long_does_not_hold_up_other_callers(server: Server) -> None:
    tasks = [server.put("a"), server.put("b")]
    await server.until(calls=2)
    tasks.append(server.put("c"))

    await server.until(calls=3)  # without any reply
    await server.reply_to_all(*tasks)
    assert server.calls == [["a"], ["b"], ["c"]]


async def test_a_refused_enqueue_does_not_refuse_the_others(server: Server) -> None:
    tasks = [server.put(name) for name in ("first", "good", "bad", "also good")]
    await server.until(calls=2)
    await server.reply_to_all(*tasks)

    assert [task.exception() is None for task in tasks] == [True, True, False, True]
    assert isinstance(tasks[2].exception(), QueueFull)
    assert server.calls == [["first"], ["good", "bad", "also good"], ["bad"]]


async def test_specs_with_the_same_id_or_key_are_sent_in_order(server: Server) -> None:
    tasks = [server.put("first"), server.put("same"), server.put("same"), server.put("other")]
    tasks += [asyncio.ensure_future(server.enqueues.put(a_spec(id=f"keyed-{n}", key="k"))) for n in range(2)]
    await server.until(calls=2)
    await server.reply_to_all(*tasks)

    assert server.calls == [["first"], ["same", "other", "keyed-0"], ["same", "keyed-1"]]


async def test_all_callers_learn_that_the_server_does_not_answer_and_none_asks_again(server: Server) -> None:
    server.lost = True
    tasks = [server.put(name) for name in ("first", "second", "third")]
    await server.until(calls=2)
    await server.reply_to_all(*tasks)

    assert all(isinstance(task.exception(), StoreError) for task in tasks)
    assert len({id(task.exception()) for task in tasks}) == 3
    assert server.calls == [["first"], ["second", "third"]]


async def test_a_cancelled_caller_does_not_cancel_the_call_of_the_others(server: Server) -> None:
    tasks = [server.put(name) for name in ("first", "second", "third")]
    await server.until(calls=2)
    tasks[1].cancel()
    await server.reply_to_all(*tasks)

    assert tasks[1].cancelled()
    assert [tasks[0].result().id, tasks[2].result().id] == ["first", "third"]


async def test_a_call_has_a_bounded_number_of_specs(server: Server) -> None:
    tasks = [server.put(f"job-{n}") for n in range(2_500)]
    await server.until(calls=2)
    await server.reply_to_all(*tasks)

    assert [len(call) for call in server.calls] == [1, 1000, 1000, 499]
