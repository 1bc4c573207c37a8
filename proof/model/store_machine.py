"""The model: a state machine that drives any store and the reference ledger alike, and compares them each step.

    Machine = store_machine(lambda clock: MyStore(clock=clock))
    run_state_machine_as_test(Machine)

There are few names, so that ids, keys, groups and dependencies interact; the clock is virtual, and may move back.
The reference is checked by itself as well (`witness.py`, `oracle.py`), so a rule that is wrong on both
sides is noticed. What was exercised is counted in `COVERAGE`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from millrace.domain.job import DAY, SECOND
from millrace.domain.outcome import Lost, Outcome
from millrace.domain.request import Claim, Extension, Query, Receipt, Reclaim
from millrace.store.clock import Clock
from millrace.store.protocol import Store
from proof.model import draw
from proof.model.batches import Batches
from proof.model.coverage import COVERAGE
from proof.model.moods import MOODS, MOVES, move
from proof.model.pair import collect
from proof.model.schedules import Schedules
from proof.model.subject import Subject

__all__ = ["COVERAGE", "StoreMachine", "by_mood", "rules_of", "store_machine"]


class StoreMachine(Batches, Schedules):
    """The moves. `begin` sets the mood of an example: what it is mostly about."""

    only: ClassVar[str | None] = None  # the only mood of this machine, see `by_mood`
    mood = "everything"

    @initialize(
        drawn=st.sampled_from(tuple(MOODS)),
        lanes=st.sampled_from((2, 2, 3, None)),
        deaths=draw.dead_letter_changes,
        changes=st.lists(st.tuples(st.sampled_from(draw.QUEUES), draw.queue_changes), max_size=4),
    )
    def begin(
        self, drawn: str, lanes: int | None, deaths: dict[str, Any], changes: list[tuple[str, dict[str, Any]]]
    ) -> None:
        self.mood = mood = self.only or drawn
        self.moves_at_the_end = mood == "schedules" or lanes == 3
        self.step("begin", lambda store, _: store.control("queue", "pool", {"lanes": lanes}))
        self.set_the_scene(deaths)
        for queue, change in changes if mood != "fast paths" else ():
            self.control_queue(queue, change)

    def set_the_scene(self, deaths: dict[str, Any]) -> None:
        """Set up what the mood is about and would otherwise be rare: a cap on dead letters, hooks, workers with
        heartbeats.
        """
        if self.mood == "dead letters":
            for queue in draw.QUEUES:
                self.control_queue(queue, deaths)
        elif self.mood == "operators":
            self.control_queue("q", {"on_empty": "bell"})
            self.control_queue("pool", {"on_empty": "bell"})
        elif self.mood == "order":
            self.control_queue("q", {"fair_share": 0.5})
            self.control_queue("r", {"fair_share": 0.34, "max_running": 2})
        elif self.mood == "lines":
            self.control_queue("pool", {"paused_lanes": [1]})
        elif self.mood in ("leases", "batches"):
            for worker in draw.WORKERS:
                self.beat(worker, DAY)
        elif self.mood == "schedules":
            self.control_queue("r", {"max_depth": 2})

    @rule(data=st.data())
    def act(self, data: st.DataObject) -> None:
        name = data.draw(MOODS[self.mood])
        needs = MOVES[name].needs
        if needs is not None and not getattr(self, needs):
            name = "claim_anything"
        arguments = {key: data.draw(values, f"{name}: {key}") for key, values in MOVES[name].arguments.items()}
        getattr(self, name)(**arguments)

    @move(wish=draw.plain)
    def enqueue(self, wish: draw.Wish) -> None:
        self.enqueue_all("enqueue", [self.spec(wish)])

    @move(wish=draw.in_line)
    def enqueue_in_line(self, wish: draw.Wish) -> None:
        self.enqueue_all("enqueue_in_line", [self.spec(wish)])

    @move(wish=draw.with_key)
    def enqueue_with_key(self, wish: draw.Wish) -> None:
        self.enqueue_all("enqueue_with_key", [self.spec(wish)])

    @move(wish=draw.after_others)
    def enqueue_after(self, wish: draw.Wish) -> None:
        self.enqueue_all("enqueue_after", [self.spec(wish)])

    @move(wish=draw.ranked)
    def enqueue_ranked(self, wish: draw.Wish) -> None:
        self.enqueue_all("enqueue_ranked", [self.spec(wish)])

    @move(wish=draw.doomed)
    def enqueue_doomed(self, wish: draw.Wish) -> None:
        self.enqueue_all("enqueue_doomed", [self.spec(wish)])

    @move(wish=draw.once_more)
    def enqueue_again(self, wish: draw.Wish) -> None:
        self.enqueue_all("enqueue_again", [self.spec(wish)])

    @move(batch=draw.batches)
    def enqueue_many(self, batch: list[draw.Wish]) -> None:
        self.enqueue_all("enqueue_many", [self.spec(wish, batch) for wish in batch])

    # ── consumers ─────────────────────────────────────────────────────────────────────────────

    @move(queues=draw.some_queues, tasks=draw.some_tasks, worker=draw.workers, limit=draw.limits, lease=draw.leases)
    def claim(
        self, queues: tuple[str, ...], tasks: frozenset[str] | None, worker: str, limit: int, lease: int | None
    ) -> None:
        self.take("claim", Claim(queues, worker, limit, tasks, lease))

    @move(limit=st.sampled_from((2, 1, 5)))
    def claim_anything(self, limit: int) -> None:
        self.take("claim_anything", Claim(draw.QUEUES, "w1", limit))

    @move(wish=draw.anything, outcomes=st.lists(draw.any_end, min_size=1, max_size=4))
    def work(self, wish: draw.Wish, outcomes: list[Outcome]) -> None:
        """A usual sequence: a job is enqueued; a worker claims some and settles each."""
        self.enqueue_all("work", [self.spec(wish)])
        runs = self.take("work", Claim(draw.QUEUES, "w2", len(outcomes)))
        for run, outcome in zip(runs, outcomes, strict=False):
            self.end("work", [run], outcome, None)

    @move(needs="held", choices=draw.index_lists, outcome=draw.any_end, carried=st.one_of(st.none(), draw.anything))
    def settle(self, choices: list[int], outcome: Outcome, carried: draw.Wish | None) -> None:
        runs = list({id(run): run for run in (self.held[-1 - i % len(self.held)] for i in choices)}.values())
        self.end("settle", runs, outcome, carried)

    @move(needs="held", outcome=draw.good_ends)
    def complete(self, outcome: Outcome) -> None:
        self.end("complete", self.held[:1], outcome, None)

    @move(needs="held", outcome=draw.bad_ends)
    def fail(self, outcome: Outcome) -> None:
        self.end("fail", self.held[:1], outcome, None)

    @move(needs="stale", index=draw.indexes, outcome=draw.any_end)
    def settle_stale(self, index: int, outcome: Outcome) -> None:
        self.end("settle_stale", [self.stale[-1 - index % len(self.stale)]], outcome, None)

    @move(
        needs="held",
        index=draw.indexes,
        by=draw.leases,
        progress=st.sampled_from((None, b"50%")),
        log=st.sampled_from((None, None, b"[1]")),
        first=st.sampled_from(("nothing", "cancel", "settle")),
    )
    def extend(self, index: int, by: int | None, progress: bytes | None, log: bytes | None, first: str) -> None:
        run = self.held[-1 - index % len(self.held)]
        if first == "cancel":
            self.on_jobs("cancel", [run.job.id], lambda store, mine: store.cancel(mine, "request"))
        elif self.stale and first == "settle":
            run = self.stale[-1 - index % len(self.stale)]
        _, [receipt] = self.step(
            "extend", lambda store, side: store.extend([Extension(run.leases[side], by, progress, log)]), run.job.id
        )
        self.coverage.note(f"extend: {receipt.value}")
        if receipt is not Receipt.LOST:
            self.witness.extended(run.leases[1], self.clock() + (run.job.spec.lease if by is None else by))

    @move(
        needs="held",
        late=st.sampled_from((31.0, 30.0, 1.0, 0.0)),
        limit=st.sampled_from((100, 1)),
        queues=st.sampled_from((None, None, ("q",))),
        tasks=draw.some_tasks,
        spare=st.booleans(),
        settle=st.sampled_from((True, True, False)),
    )
    def reclaim(
        self,
        late: float,
        limit: int,
        queues: tuple[str, ...] | None,
        tasks: frozenset[str] | None,
        spare: bool,
        settle: bool,
    ) -> None:
        if late:
            self.move_the_clock(late)
        request = Reclaim("reaper", limit, 30 * SECOND, queues, tasks)
        for run in self.take_over(request, self.held[-1:] if spare else []):
            if settle:
                self.end("reclaim", [run], Lost(draw.ERROR, run.job.lost_worker or False), None)

    # ── readers, time, restarts ───────────────────────────────────────────────────────────────

    @move(query=draw.queries)
    def find(self, query: Query) -> None:
        self.step("find", lambda store, _: collect(store, query))

    @move(seconds=draw.moves)
    def move_the_clock(self, seconds: float) -> None:
        self.coverage.note("rule: move_the_clock")
        self.time_went_back = self.time_went_back or seconds < 0
        self.clock.advance(seconds)

    @move(needs="can_reopen")
    def restart(self) -> None:
        self.coverage.note("rule: restart")
        self.run(self._restart())

    @property
    def can_reopen(self) -> bool:
        return self.subject.reopen is not None

    async def _restart(self) -> None:
        assert self.subject.reopen is not None
        await self.pair.stores[0].close()
        self.pair.stores[0] = self.subject.reopen(self.pair.stores[0], self.clock)
        await self.pair.stores[0].connect()
        await self.pair.everything(draw.QUEUES, histories=True)


def store_machine(
    make_store: Callable[[Clock], Store],
    *,
    reopen: Callable[[Store, Clock], Store] | None = None,
    discard: Callable[[Store], None] | None = None,
    label: str = "store",
    runner: asyncio.Runner | None = None,
) -> type[StoreMachine]:
    """The machine for one kind of store.

    `make_store` returns a new, empty store; `reopen` (for a store that outlives its process) returns another one on
    the data of the first, now closed; `discard` cleans up after an example. With `runner`, all examples share its
    event loop, for a store with expensive connections.
    """
    return type("StoreMachine", (StoreMachine,), {"subject": Subject(make_store, reopen, discard, label, runner)})


def by_mood(machine: type[StoreMachine]) -> list[type[StoreMachine]]:
    """One machine for each mood. If moods were random, one could be left out of hundreds of examples."""
    return [type("StoreMachine", (machine,), {"only": mood}) for mood in MOODS]


_SHARED = {"operate", "operate_on_finished", "configure", "now_and_then"}  # counted as the moves they make


def rules_of(machine: type[StoreMachine]) -> frozenset[str]:
    """The moves that a run of this machine is expected to make."""
    done = {*("cancel", "replay", "archive", "delete", "control_queue", "control_task", "control_store")}
    done |= {"begin", "drain", "obliterate", "beat", "leave", "read_events", "due_schedules"}
    left_out = _SHARED if machine.subject.reopen is not None else _SHARED | {"restart"}
    return frozenset((set(MOVES) | done) - left_out)
