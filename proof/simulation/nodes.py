"""The nodes of a simulated fleet: workers that run the real code, producers, and an operator.

Each sees the store through its own wire and draws its chance from its own seed.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any, Protocol, cast

import msgspec

from millrace.app.app import App
from millrace.app.handler.context import Context
from millrace.app.handler.verdict import Bury, Retry, Snooze
from millrace.domain.errors import QueueError, StoreError
from millrace.domain.job import Spec
from millrace.domain.request import Enqueued
from millrace.domain.rules.dead import DeadLetter
from millrace.store.protocol import Store
from millrace.worker.heartbeat import InlineHeartbeat
from millrace.worker.worker import Worker
from proof.simulation.network import Wire
from proof.simulation.workload import LEASE, OPEN, OTHER, POOL, QUEUES, Batch, Script

PAST_EVERY_TIMEOUT = 60.0


class Ledger(Protocol):
    """What a node writes down outside of the store, and the two things that happen to it."""

    def begin(self, node: str, ctx: Context) -> None: ...
    def end(self, ctx: Context, how: str) -> None: ...
    def accepted(self, specs: tuple[Spec, ...], answers: list[Enqueued]) -> None: ...
    def announce(self, spec: Spec) -> None: ...
    def crash(self, node: str) -> None: ...
    def known(self) -> list[str]: ...


def make_worker(node: str, wire: Wire, ledger: Ledger, slots: int, chance: random.Random) -> Worker:
    app = App(cast("Store", wire))

    @app.task(lease=LEASE / 1000)
    async def play(ctx: Context, script: Script) -> str:
        ledger.begin(node, ctx)
        try:
            await _act(ctx, script, node, ledger)
        except BaseException as error:
            ledger.end(ctx, type(error).__name__)
            raise
        ledger.end(ctx, "returned")
        return ctx.id

    @app.task(lease=LEASE / 1000)
    async def obituary(ctx: Context, letter: DeadLetter) -> str:
        ledger.begin(node, ctx)
        ledger.end(ctx, "returned")
        return letter.reason

    @app.task(lease=LEASE / 1000)
    async def emptied(ctx: Context, queue: str, lane: int | None, finished: int) -> str:
        ledger.begin(node, ctx)
        ledger.end(ctx, "returned")
        return queue

    return Worker(
        app,
        queues=QUEUES,
        slots=slots,
        name=node,
        chance=chance.random,
        heartbeat=InlineHeartbeat,
        poll_max=2.0,
        reap_interval=1.5,
        maintain_interval=10.0,
        shutdown_deadline=1.0,
        grace=0.5,
    )


async def _act(ctx: Context, script: Script, node: str, ledger: Ledger) -> None:
    action = script.runs[min(ctx.attempt, len(script.runs)) - 1]
    await asyncio.sleep(script.takes / 1000)
    match action:
        case "fail":
            raise RuntimeError("it broke")
        case "retry":
            raise Retry("not yet", after=0.7)
        case "snooze":
            raise Snooze(1.1)
        case "bury":
            raise Bury("it is hopeless")
        case "hang":
            await asyncio.sleep(PAST_EVERY_TIMEOUT)
        case "stubborn":
            try:
                await asyncio.sleep(PAST_EVERY_TIMEOUT)
            except asyncio.CancelledError:
                await asyncio.sleep(2.0)
        case "poison":
            ledger.crash(node)
            await asyncio.sleep(0)
        case "carry":
            payload = msgspec.json.encode({"script": Script(("ok",))})
            child = Spec(f"{ctx.id}+", "play", ctx.queue, payload, token=f"{ctx.id}+", group=ctx.job.spec.group)
            ledger.announce(child)
            ctx.carry(child)
        case "progress":
            ctx.progress({"attempt": ctx.attempt})
            await asyncio.sleep(LEASE / 2000)


async def produce(wire: Wire, ledger: Ledger, batches: list[Batch]) -> None:
    """Enqueue batch after batch; an enqueue without an answer is asked again under the same tokens."""
    store = cast("Store", wire)
    while batches:
        batch = batches[0]
        await asyncio.sleep(batch.after / 1000)
        for spec in batch.specs:
            ledger.announce(spec)
        while True:
            try:
                ledger.accepted(batch.specs, await store.enqueue(batch.specs))
                break
            except StoreError:
                await asyncio.sleep(0.3)
        batches.pop(0)


async def operate(wire: Wire, ledger: Ledger, chance: random.Random) -> None:
    """Cancel, replay, archive, delete and pause, at random and without waiting for each other's effect."""
    store: Any = wire
    while True:
        await asyncio.sleep(chance.expovariate(1.0))
        known = ledger.known()
        some = chance.sample(known, min(len(known), chance.choice((1, 1, 3))))
        action = chance.choice(
            ("cancel", "request", "replay", "archive", "delete", "pause", "resume", "lanes", "maintain")
        )
        try:
            match action:
                case "cancel":
                    await store.cancel(some)
                case "request":
                    await store.cancel(some, "request")
                case "replay":
                    await store.replay(some, chance.random() < 0.7)
                case "archive":
                    await store.archive(some, chance.random() < 0.7)
                case "delete":
                    await store.delete(some)
                case "pause" | "resume":
                    await store.control("queue", chance.choice((OPEN, OTHER, POOL)), {"paused": action == "pause"})
                case "lanes":
                    await store.control("queue", POOL, {"paused_lanes": chance.choice(((), (0,), (0, 1)))})
                case _:
                    await store.maintain()
        except QueueError:
            continue
