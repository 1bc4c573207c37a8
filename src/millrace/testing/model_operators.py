"""What operators ask of a store, as moves of the model: cancel, replay, archive, settings, upkeep."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from hypothesis import strategies as st

from millrace.domain.job import SECOND
from millrace.domain.request import WorkerInfo
from millrace.store.protocol import Store
from millrace.testing import model_draw as draw
from millrace.testing.model_machine import Machine
from millrace.testing.model_moods import move
from millrace.testing.model_pair import Refusal


class Operators(Machine):
    def some_ids(self, choices: Sequence[int]) -> list[str]:
        """Recent ids, old ones and one that does not exist."""
        known = list(self.pair.known)
        return [known[-1 - choice] if choice < min(6, len(known)) else draw.POOL[choice - 6] for choice in choices]

    @move(
        what=st.sampled_from(("cancel", "request", "replay", "replay", "archive", "unarchive")),
        choices=draw.index_lists,
    )
    def operate(self, what: str, choices: list[int]) -> None:
        ids = self.some_ids(choices)
        if what == "cancel":
            self.on_jobs("cancel", ids, lambda store, mine: store.cancel(mine))
        elif what == "request":
            ids += [run.job.id for run in self.held[:1]]
            self.on_jobs("cancel", ids, lambda store, mine: store.cancel(mine, "request"))
        elif what == "replay":
            self.on_jobs("replay", ids, lambda store, mine: store.replay(mine))
        else:
            self.on_jobs("archive", ids, lambda store, mine: store.archive(mine, what == "archive"))

    @move(state=st.sampled_from(("dead", "completed", "cancelled")), then=st.sampled_from(("replay", "archive")))
    def operate_on_finished(self, state: str, then: str) -> None:
        ids = [job.id for job in self.records() if job.state.value == state][-2:]
        if then == "replay":
            self.on_jobs("replay", ids, lambda store, mine: store.replay(mine))
            return
        self.on_jobs("archive", ids, lambda store, mine: store.archive(mine))
        self.on_jobs("archive", ids[:1], lambda store, mine: store.archive(mine, False))

    def on_jobs(self, what: str, ids: list[str], question: Callable[[Store, list[str]], Awaitable[Any]]) -> None:
        _, answers = self.step(what, lambda store, side: question(store, self.pair.ids(ids, side)), *ids)
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
        self.step("maintain", lambda store, _: store.maintain(limit))

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
            self.step("leave", lambda store, _: store.leave(worker))
        else:
            self.read_events(3 if few else 100)

    def beat(self, worker: str, ttl: int) -> None:
        self.step("beat", lambda store, _: store.beat(WorkerInfo(worker, draw.QUEUES, slots=2), ttl))

    def read_events(self, limit: int) -> None:
        """From an old cursor, which may have been overtaken."""
        old = self.cursors[len(self.cursors) // 2] if self.cursors else (None, None)
        cursors = ["", ""]

        async def question(store: Store, side: int) -> int:
            page = await store.events(old[side], limit)
            cursors[side] = page.cursor
            return len(page.events)

        _, answer = self.step("read_events", question)
        if not isinstance(answer, Refusal):
            self.cursors.append((cursors[0], cursors[1]))
