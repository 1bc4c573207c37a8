"""Moves of operators: cancel, replay, archive, delete, settings, maintenance."""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from hypothesis import strategies as st

from millrace.domain.job import SECOND
from millrace.domain.request import WorkerInfo
from millrace.store.protocol import Store
from proof.model import draw
from proof.model.machine import Machine
from proof.model.moods import move
from proof.model.oracle import check_children, open_dependents, results_needed
from proof.model.pair import Refusal


class Operators(Machine):
    def some_ids(self, choices: Sequence[int]) -> list[str]:
        """Recent ids, old ones, and unknown ones."""
        known = list(self.pair.known)
        pool = dict(enumerate(draw.POOL, start=6))
        return [
            known[-1 - choice]
            if choice < min(6, len(known)) or (choice > 11 and choice < len(known))
            else pool.get(choice, f"nobody-{choice}")
            for choice in choices
        ]

    @move(
        what=st.sampled_from(
            ("cancel", "request", "replay", "replay", "replay alone", "archive", "unarchive", "delete")
        ),
        choices=draw.id_lists,
    )
    def operate(self, what: str, choices: list[int]) -> None:
        ids = self.some_ids(choices)
        if what == "cancel":
            self.on_jobs("cancel", ids, lambda store, mine: store.cancel(mine))
        elif what == "request":
            ids += [run.job.id for run in self.held[:1]]
            self.on_jobs("cancel", ids, lambda store, mine: store.cancel(mine, "request"))
        elif what in ("replay", "replay alone"):
            self.replay(ids, children=what == "replay")
        elif what == "delete":
            self.on_jobs("delete", ids, lambda store, mine: store.delete(mine))
        else:
            self.on_jobs("archive", ids, lambda store, mine: store.archive(mine, what == "archive"))

    @move(
        state=st.sampled_from(("dead", "completed", "cancelled")), then=st.sampled_from(("replay", "archive", "delete"))
    )
    def operate_on_finished(self, state: str, then: str) -> None:
        ids = [job.id for job in self.records() if job.state.value == state][-2:]
        if then == "replay":
            parents = [job.failed_parent for job in self.records() if job.failed_parent is not None]
            self.replay([*ids, *(parent for parent in parents[-1:] if parent not in ids)])
            return
        if then == "delete":
            self.on_jobs("delete", [*ids, *ids[:1]], lambda store, mine: store.delete(mine))
            return
        self.on_jobs("archive", ids, lambda store, mine: store.archive(mine))
        self.on_jobs("archive", ids[:1], lambda store, mine: store.archive(mine, False))

    @move(family=draw.families)
    def replay_parent(self, family: list[draw.Wish]) -> None:
        """Let a parent fail with its child, then replay it; the child must be replayed too."""
        specs = [self.spec(wish, family) for wish in family]
        self.enqueue_all("replay_parent", specs)
        self.on_jobs("cancel", [specs[-1].id], lambda store, mine: store.cancel(mine))
        self.replay([specs[-1].id])

    def replay(self, ids: list[str], *, children: bool = True) -> None:
        before = {job.id: copy.copy(job) for job in self.records()}
        self.on_jobs("replay", ids, lambda store, mine: store.replay(mine, children))
        check_children(before, self.records(), self.events, children)

    def on_jobs(self, what: str, ids: list[str], question: Callable[[Store, list[str]], Awaitable[Any]]) -> None:
        _, answers = self.step(what, lambda store, _: question(store, ids), *ids)
        for answer in answers:
            self.coverage.note(f"{what}: {answer.value}")

    @move(setting=draw.settings)
    def configure(self, setting: tuple[str, str, dict[str, Any]]) -> None:
        kind, name, changes = setting
        if kind == "queue":
            self.control_queue(name, changes)
        elif kind == "task":
            self.control_task(name, changes)
        else:
            self.control("store", "", changes)

    def control_queue(self, queue: str, changes: dict[str, Any]) -> None:
        old = self.tables.queue(queue).settings
        self.control("queue", queue, changes)
        new = self.tables.queue(queue).settings
        if (old.rate, old.burst) != (new.rate, new.burst):
            self.tokens.reset("queue", queue)
        if old.fair_share != new.fair_share:
            self.tokens.taken[queue] = 0

    def control_task(self, task: str, changes: dict[str, Any]) -> None:
        row = self.tables.task(task)
        old = None if row is None else row.limits
        self.control("task", task, changes)
        row = self.tables.task(task)
        if row is not None and (old is None or (old.rate, old.burst) != (row.limits.rate, row.limits.burst)):
            self.tokens.reset("task", task)

    def control(self, target: Any, name: str, changes: dict[str, Any]) -> None:
        _, answer = self.step(f"control_{target}", lambda store, _: store.control(target, name, changes))
        self.coverage.note(f"control: {answer.error if isinstance(answer, Refusal) else 'done'}")

    @move(limit=st.sampled_from((1_000, 1_000, 2)))
    def maintain(self, limit: int) -> None:
        needed, before = results_needed(self.records()), open_dependents(self.records())
        self.step("maintain", lambda store, _: store.maintain(limit))
        wanted = {parent for _, parent in before & open_dependents(self.records())}  # a child may just have expired
        gone = [job.id for job in self.records() if job.seq in needed and job.id in wanted and job.result is None]
        assert not gone, f"an open job runs after these, and yet their results are gone: {gone}"

    @move(
        what=st.sampled_from(("beat", "beat", "leave", "drain", "obliterate", "read", "read", "beat")),
        queue=st.sampled_from(draw.QUEUES),
        worker=draw.workers,
        few=st.booleans(),
    )
    def now_and_then(self, what: str, queue: str, worker: str, few: bool) -> None:
        if what == "drain":
            lane = 1 if few and queue == "pool" else None
            self.step("drain", lambda store, _: store.drain(queue, 2 if few else 1_000, lane))
        elif what == "obliterate":
            self.step("obliterate", lambda store, _: store.obliterate(queue, 2 if few else 1_000))
        elif what == "beat":
            self.beat(worker, SECOND if few else 60 * SECOND)
        elif what == "leave":
            self.step("leave", lambda store, _: store.beat(WorkerInfo(worker), 0))
        else:
            self.read_events(3 if few else 100)

    def beat(self, worker: str, ttl: int) -> None:
        self.step("beat", lambda store, _: store.beat(WorkerInfo(worker, draw.QUEUES, slots=2), ttl))

    def read_events(self, limit: int) -> None:
        """Read from an old cursor, which may have expired."""
        old = self.cursors[len(self.cursors) // 2] if self.cursors else (None, None)
        cursors = ["", ""]

        async def question(store: Store, side: int) -> int:
            page = await store.events(old[side], limit)
            cursors[side] = page.cursor
            return len(page.events)

        _, answer = self.step("read_events", question)
        if not isinstance(answer, Refusal):
            self.cursors.append((cursors[0], cursors[1]))
