"""Claims: what is due is let in, the index is looked at, the ledger chooses, and each job chosen is swapped.

An idle worker costs two listings per look: with nothing in the index there is nothing to ask about limits or pauses.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence

import msgspec

from millrace.domain.change import Change
from millrace.domain.job import Job
from millrace.domain.ledger import PROMOTIONS, Ledger
from millrace.domain.request import Claim, Receipt
from millrace.domain.settings import QueueSettings
from millrace.store.object.engine import Engine
from millrace.store.object.keys import TASKS, word
from millrace.store.object.log_scan import MissingKeys
from millrace.store.object.objects import Seen
from millrace.store.object.run import Item
from millrace.store.object.tables import ObjectTables
from millrace.store.object.values import QueueValue, decode
from millrace.store.object.view import View

ROUNDS = 8  # of one claim, while others are faster or the index is behind


class Claimer:
    """`look_every` is how often, in seconds, claims look for what has become due: a listing of its own."""

    def __init__(self, engine: Engine, look_every: float) -> None:
        self._engine = engine
        self._layout = engine.layout
        self._salt = os.urandom(6).hex()
        self._claims = 0
        self._look_every = look_every
        self._looked = -1e9
        self.missing_keys: MissingKeys | None = None  # looked for when a claim finds nothing
        self._next_trigger: int | None = None  # the first one that was not due at the last look

    def claim_id(self) -> str:
        self._claims += 1
        return f"{self._salt}-{self._claims:x}"

    async def claim(self, request: Claim) -> list[Job]:
        jobs: list[Job] = []
        if time.monotonic() - self._looked >= self._look_every:
            await self.let_time_pass(PROMOTIONS)
        for _ in range(ROUNDS):
            rest = msgspec.structs.replace(request, limit=request.limit - len(jobs))
            taken, try_again = await self._claim_some(rest)
            jobs += taken
            if len(jobs) >= request.limit or not try_again:
                break
        if not jobs and self.missing_keys is not None:
            jobs = await self._claim_what_the_index_lacks(request, self.missing_keys)
        return jobs

    async def _claim_what_the_index_lacks(self, request: Claim, missing_keys: MissingKeys) -> list[Job]:
        restored = await missing_keys.restore()
        if not restored:
            return []
        self._engine.tally["index_restored"] += len(restored)
        self._engine.ready.forget()
        taken, _ = await self._claim_some(request)
        return taken

    async def _claim_some(self, request: Claim) -> tuple[list[Job], bool]:
        """(jobs, whether others were faster or the index was behind, so that asking again is worth it)"""
        view = self._engine.view()
        tasks = None if request.tasks is None else frozenset(map(word, request.tasks))
        queues = frozenset(map(word, request.queues))
        if not await view.anything_ready(queues, tasks, await self._engine.clock(), request.limit):
            return [], False
        claim_id = self.claim_id()
        run = await self._engine.carry_out(
            [Item(None, lambda ledger, now: ledger.claim(request, claim_id, now))],
            view=view,
            durable=False,
            queues=queues,
            expected=[TASKS, *(self._layout.queue(name) for name in dict.fromkeys(request.queues))],
        )
        if run.wasted:
            self._engine.ready.others_were_faster(request.limit)
        elif run.answers[0]:
            self._engine.ready.nobody_was_faster()
        won = [job for job in run.answers[0] if self._layout.job(job.id) in run.written]
        if run.wasted and len(won) < request.limit:
            self._engine.ready.forget()  # what was lost may still be claimable: a swap of our own came in between
        return await self._without_paused(won, view, run.settings), run.wasted + run.stale > 0

    async def _without_paused(self, jobs: list[Job], view: View, settings: Mapping[str, Seen]) -> list[Job]:
        """What was claimed while a pause was being acknowledged goes back: after that, nothing is handed out.

        Where the settings are the same after the swap as before it, the claim came before any pause.
        """
        changed = {
            key: decode(seen.value, QueueValue).settings
            for key, seen in settings.items()
            if key != TASKS and seen.value is not None and seen.tag != view.seen[key].tag
        }
        paused = [job for job in jobs if _is_paused(job, changed.get(self._layout.queue(job.queue)))]
        for job in paused:
            key = self._layout.job(job.id)
            await self._engine.carry_out([Item(key, _release(job))], places={job.seq: key})
        return [job for job in jobs if job not in paused]

    async def let_time_pass(self, limit: int) -> tuple[int, int]:
        """(let into their lines, expired): before a claim, not within it, so that whoever waited for what has expired
        is told in between."""
        self._looked = time.monotonic()
        view = self._engine.view()
        something, self._next_trigger = await view.anything_due("due", await self._engine.clock())
        if not something:
            return 0, 0
        run = await self._engine.carry_out(
            [Item(None, lambda ledger, now: _pass_time(ledger, now, limit))], looks_at_time=True, view=view
        )
        await self._engine.dependents.tell(run)
        promoted, expired, left = run.answers[0]
        while left:
            more = await self._engine.carry_out(
                [Item(None, lambda ledger, now: _expire_more(ledger, now, limit))], looks_at_time=True
            )
            await self._engine.dependents.tell(more)
            left = more.answers[0]
        return promoted, expired

    async def next_due(self, queues: Sequence[str], tasks: frozenset[str] | None) -> float | None:
        """Seconds until a claim may find something, as far as can be known now."""
        words = frozenset(map(word, queues))
        spelled = None if tasks is None else frozenset(map(word, tasks))
        fresh = time.monotonic() - self._looked < self._look_every
        if fresh and self._next_trigger is None and self._engine.ready.is_empty(words, spelled):
            return None
        (due, now), _ = await self._engine.decide(
            self._engine.view(), lambda ledger, now: (ledger.next_due(queues, tasks, now), now), queues=words
        )
        return None if due is None else (due - now) / 1000


def _is_paused(job: Job, settings: QueueSettings | None) -> bool:
    return settings is not None and (settings.paused or (job.lane is not None and job.lane in settings.paused_lanes))


def _release(job: Job) -> Callable[[Ledger, int], Receipt]:
    return lambda ledger, now: ledger.settle([(job.lease, Change.release())], now)[0]


def _pass_time(ledger: Ledger, now: int, limit: int) -> tuple[int, int, int]:
    """(let in, expired and to expire, of them those that are first to hear of others' end)"""
    step = ledger.step(now)
    promoted, expired = ledger.promote(step, limit), ledger.expire(step, limit)
    left = ledger.tables.postponed if isinstance(ledger.tables, ObjectTables) else 0
    return promoted, expired + left, left


def _expire_more(ledger: Ledger, now: int, limit: int) -> int:
    return ledger.expire(ledger.step(now), limit)
