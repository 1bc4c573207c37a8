"""Handlers that do to their process what nobody should: only their own job may suffer, and its error says why."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from millrace import Context, RetryPolicy, State
from millrace.worker.process import children
from tests.worker.process import handlers, shop
from tests.worker.stage import Stage, until

AT_ONCE = RetryPolicy(initial=1, maximum=1)


def task(stage: Stage, handler: Any, **options: Any) -> Any:
    return stage.app.task(process=True, **{"timeout": 60, "retry": AT_ONCE, "max_attempts": 1, **options})(handler)


async def test_a_copy_that_a_handler_has_forked_cannot_answer_for_the_next_job():
    stage = Stage()
    forking, slowly = task(stage, handlers.fork_and_go_on), task(stage, handlers.slowly)

    async with stage.working(processes=1):
        assert await forking.call(1) == ["the child", 1]
        assert await slowly.call(2) == ["slowly", 2]  # the copy has returned meanwhile


async def test_processes_that_a_handler_forks_can_be_ended_by_a_signal():
    stage = Stage()
    end_a_copy = task(stage, handlers.end_a_copy)

    async with stage.working(processes=1):
        assert await end_a_copy.call() == -signal.SIGTERM


@pytest.mark.parametrize("handler", [handlers.close_all, handlers.become_another, handlers.scribble])
async def test_a_handler_that_breaks_its_connection_is_told_so_and_not_of_a_lack_of_memory(handler: Any):
    stage = Stage()
    breaking, add = task(stage, handler), task(stage, handlers.add)

    async with stage.working(processes=1):
        job = await stage.until((await breaking.enqueue()).id, timeout=120)
        assert await add.call(1, 2) == 3

    assert (job.state, job.error and job.error.type) == (State.DEAD, "ProcessDied")
    assert job.error is not None and "Its connection to the worker was broken" in job.error.message
    assert "out of memory" not in job.error.message


async def test_a_stdout_that_cannot_be_flushed_does_not_undo_what_was_done():
    stage = Stage()
    spoil = task(stage, handlers.spoil_stdout)

    async with stage.working(processes=1):
        assert await spoil.call() == "done"


async def test_text_that_no_encoding_knows_travels_spelled_out(caplog):
    stage = Stage()
    odd = task(stage, handlers.raise_half_a_pair)

    with caplog.at_level(logging.WARNING, "millrace.handler"):
        async with stage.working(processes=1):
            job = await stage.until((await odd.enqueue()).id, timeout=120)

    assert (job.reason, job.error and job.error.type) == ("max_attempts_exceeded", "FileNotFoundError")
    assert job.error is not None and job.error.message == "\\udc80.txt"
    [record] = [record for record in caplog.records if "about to open" in record.getMessage()]
    assert record.getMessage().endswith("\\udc80.txt")
    assert (vars(record)["size"], vars(record)["name\\udc80"]) == (str(10**30), "\\udc80")


async def test_an_error_class_that_cannot_be_made_fails_its_own_job_only():
    stage = Stage()
    answer = stage.app.batch_task(process=True, size=3, max_attempts=1)(handlers.answer_with_a_class)

    jobs = await answer.enqueue_many([(n,) for n in (1, 0, 2)])
    await stage.burst(processes=1)

    ends = [await stage.job(job.id) for job in jobs]
    assert [(end.state, end.stalls) for end in ends] == [(State.COMPLETED, 0), (State.DEAD, 0), (State.COMPLETED, 0)]
    assert ends[1].error is not None and "NeedsWords" in ends[1].error.message


async def test_a_job_that_middleware_carries_is_not_dropped_for_those_of_the_handler():
    stage = Stage()

    async def audit(ctx: Context, call_next: Any) -> Any:
        ctx.enqueue(shop.receipt.options(id="by the layer"), number=7)
        return await call_next()

    spread = task(stage, handlers.spread, middleware=[audit])
    await spread.enqueue(2)
    await stage.burst(queues=["default"], processes=1)

    assert [(await stage.job(name)).state for name in ("by the layer", "r0", "r1")] == [State.WAITING] * 3


async def test_no_more_children_are_started_than_there_may_be():
    stage = Stage()
    slowly = task(stage, handlers.slowly)
    most = 0

    async with stage.working(processes=2, slots=10) as worker:
        await slowly.enqueue_many([(n,) for n in range(10)])
        while worker.stats.completed < 4:
            most = max(most, worker.stats.children)
            await asyncio.sleep(0.002)
        await worker.stop(deadline=0)

    assert most == 2


async def test_a_system_without_room_for_another_process_delays_a_job_and_costs_it_nothing(monkeypatch):
    stage = Stage()
    slowly, add = task(stage, handlers.slowly), task(stage, handlers.add)
    full, real = 3, socket.socketpair

    def socketpair() -> Any:
        nonlocal full
        if full == 0:
            return real()
        full -= 1
        raise OSError(errno.EMFILE, "Too many open files")

    async with stage.working(processes=2) as worker:
        await until(lambda: worker.stats.children == 1, 20)
        monkeypatch.setattr(socket, "socketpair", socketpair)
        monkeypatch.setattr(children, "TRIES", 1)
        first = await slowly.enqueue(1)
        await stage.until(first.id, "running", timeout=120)
        second = await add.enqueue(1, 2)
        await until(lambda: worker.stats.released, 20)
        given_back = await stage.job(second.id)
        await worker.stop()

    assert (given_back.state, given_back.failures, given_back.releases) == (State.WAITING, 0, 1)
    assert (await stage.job(first.id)).state is State.COMPLETED


async def test_a_dead_child_is_given_no_job_even_before_it_is_buried():
    stage = Stage()
    whoami = task(stage, handlers.whoami)

    async with stage.working(processes=1) as worker:
        first, _ = await whoami.call()
        assert worker._components is not None and worker._components.executor.children is not None
        [idle] = worker._components.executor.children._idle
        idle._closed = True  # as when the end of its connection is known, and that of the process is not yet
        answer = await whoami.enqueue()
        os.kill(first, signal.SIGKILL)
        job = await stage.until(answer.id, timeout=120)

    assert (job.state, job.attempt, job.stalls) == (State.COMPLETED, 1, 0)


async def test_folders_to_import_from_may_be_paths_or_have_names_that_are_not_text(monkeypatch, tmp_path):
    stage = Stage()
    monkeypatch.setattr(sys, "path", [*sys.path, Path(tmp_path), os.fsdecode(b"/no/such/\x80"), None])
    add = task(stage, handlers.add)

    async with stage.working(processes=1):
        assert await add.call(1, 2) == 3
