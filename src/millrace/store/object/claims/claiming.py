"""Claims: move due jobs into their groups and lanes, read the index, let the ledger choose jobs, and swap each chosen
job.

An idle worker needs two listings per poll. While the index is empty, limits and pauses are not read.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence

import msgspec

from millrace.domain.change import Change
from millrace.domain.errors import StoreError
from millrace.domain.job import Job
from millrace.domain.ledger import PROMOTIONS, Ledger
from millrace.domain.request import Claim, Receipt
from millrace.domain.settings import QueueSettings
from millrace.domain.tables import Place
from millrace.store.clock import Clock, system_clock
from millrace.store.object.blobs import Blobs
from millrace.store.object.claims.log_scan import MissingKeys
from millrace.store.object.engine.engine import Engine, Question
from millrace.store.object.engine.job_table import TableOptions
from millrace.store.object.engine.objects import SeenObject
from millrace.store.object.engine.tables import ObjectTables
from millrace.store.object.engine.values import QueueValue, decode
from millrace.store.object.engine.view import View
from millrace.store.object.keys import TASKS, word
from millrace.store.object.options import ObjectOptions

log = logging.getLogger("millrace.store")
AT_THIS_TIME = TableOptions(looks_at_time=True)
REFUSED_ABOVE = 60_000  # milliseconds of clock difference
ROUNDS = 8  # attempts of one claim, while others win or the index is stale


class Claimer:
    """Claims jobs. With `compares_clocks`, each claim first compares this machine's clock with the store's clock."""

    def __init__(self, engine: Engine, options: ObjectOptions, *, compares_clocks: bool) -> None:
        self._engine = engine
        self._skew = SkewGuard(engine.blobs, options.max_clock_skew) if compares_clocks else None
        self._missing_keys = MissingKeys(engine.objects, options) if options.index_mode == "hybrid" else None
        self._layout = engine.layout
        self._salt = os.urandom(6).hex()
        self._claims = 0
        self._look_every = options.look_every / 1000  # seconds between two listings of what has become due
        self._looked = -1e9
        self._next_trigger: int | None = None  # the next trigger after the last check

    def claim_id(self) -> str:
        self._claims += 1
        return f"{self._salt}-{self._claims:x}"

    async def claim(self, request: Claim) -> list[Job]:
        if self._skew is not None:
            await self._skew.check()
        jobs: list[Job] = []
        if time.monotonic() - self._looked >= self._look_every:
            await self.admit_and_expire(PROMOTIONS)
        for _ in range(ROUNDS):
            rest = msgspec.structs.replace(request, limit=request.limit - len(jobs))
            taken, try_again = await self._claim_some(rest)
            jobs += taken
            if len(jobs) >= request.limit or not try_again:
                break
        if not jobs and self._missing_keys is not None:
            jobs = await self._claim_missing(request, self._missing_keys)
        return jobs

    async def _claim_missing(self, request: Claim, missing_keys: MissingKeys) -> list[Job]:
        """Restore missing index keys, then claim the jobs of these keys. Return no jobs if no key was missing."""
        restored = await missing_keys.restore()
        if not restored:
            return []
        self._engine.tally["index_restored"] += len(restored)
        self._engine.ready.forget()
        taken, _ = await self._claim_some(request)
        return taken

    async def _claim_some(self, request: Claim) -> tuple[list[Job], bool]:
        """Try to claim once. Return the jobs, and whether to try again.

        Another attempt is useful if other workers took some of the jobs or the index was stale.
        """
        view = self._engine.view()
        tasks = None if request.tasks is None else frozenset(map(word, request.tasks))
        queues = frozenset(map(word, request.queues))
        if not await view.anything_ready(queues, tasks, await self._engine.clock(), request.limit):
            return [], False
        claim_id = self.claim_id()
        run = await self._engine.carry_out(
            [(None, lambda ledger, now: ledger.claim(request, claim_id, now))],
            view=view,
            durable=False,
            options=TableOptions(queues=queues),
            expected=[TASKS, *(self._layout.queue(name) for name in dict.fromkeys(request.queues))],
        )
        if run.wasted:
            self._engine.ready.race_was_lost(request.limit)
        elif run.answers[0]:
            self._engine.ready.no_race_was_lost()
        won = [job for job in run.answers[0] if self._layout.job(job.id) in run.written]
        if run.wasted and len(won) < request.limit:
            self._engine.ready.forget()  # the lost jobs may still be claimable: our own swaps may interfere
        return await self._without_paused(won, view, run.settings), run.wasted + run.stale > 0

    async def _without_paused(self, jobs: list[Job], view: View, settings: Mapping[str, SeenObject]) -> list[Job]:
        """Release the jobs of queues that were paused during the claim, and return the other jobs.

        So no job starts after a pause is confirmed. If the settings are the same before and after the swap, there was
        no pause in between.
        """
        changed = {
            key: decode(seen.value, QueueValue).settings
            for key, seen in settings.items()
            if key != TASKS and seen.value is not None and seen.tag != view.seen[key].tag
        }
        paused = [job for job in jobs if _is_paused(job, changed.get(self._layout.queue(job.queue)))]
        for job in paused:
            key = self._layout.job(job.id)
            await self._engine.carry_out([(key, _release(job))], options=TableOptions(keys_by_seq={job.seq: key}))
        return [job for job in jobs if job not in paused]

    async def admit_and_expire(self, limit: int) -> tuple[int, int]:
        """Move jobs that have become due into their groups and lanes, and expire jobs. Return the numbers of both.

        This happens before a claim and not as part of it, because the dependents of expired jobs must be updated first.
        """
        self._looked = time.monotonic()
        view = self._engine.view()
        something, self._next_trigger = await view.anything_due("due", await self._engine.clock())
        if not something:
            return 0, 0
        run = await self._engine.carry_out(
            [(None, lambda ledger, now: _admit_and_expire(ledger, now, limit))], options=AT_THIS_TIME, view=view
        )
        await self._engine.dependents.update(run)
        promoted, expired, left = run.answers[0]
        while left:
            more = await self._engine.carry_out(
                [(None, lambda ledger, now: _expire_more(ledger, now, limit))], options=AT_THIS_TIME
            )
            await self._engine.dependents.update(more)
            left = more.answers[0]
        return promoted, expired

    async def outlook(
        self, queues: Sequence[str], tasks: frozenset[str] | None
    ) -> tuple[float | None, frozenset[Place]]:
        """Return the seconds until a claim may find a job (None if unknown), and the limits that block due jobs now."""
        words = frozenset(map(word, queues))
        spelled = None if tasks is None else frozenset(map(word, tasks))
        fresh = time.monotonic() - self._looked < self._look_every
        if fresh and self._next_trigger is None and self._engine.ready.is_empty(words, spelled):
            return None, frozenset()
        (found, now), _ = await self._engine.decide(
            self._engine.view(),
            lambda ledger, now: (ledger.outlook(queues, tasks, now), now),
            TableOptions(queues=words),
        )
        return None if found.until is None else (found.until - now) / 1000, found.held_by


def _is_paused(job: Job, settings: QueueSettings | None) -> bool:
    return settings is not None and (settings.paused or (job.lane is not None and job.lane in settings.paused_lanes))


def _release(job: Job) -> Question[Receipt]:
    return lambda ledger, now: ledger.settle([(job.lease, Change.release())], now)[0]


def _admit_and_expire(ledger: Ledger, now: int, limit: int) -> tuple[int, int, int]:
    """Move and expire jobs. Return three counts: jobs moved into their lines, expired or postponed jobs, and postponed
    jobs.

    A postponed job depends on another job that expires too.
    """
    step = ledger.step(now)
    promoted, expired = ledger.promote(step, limit), ledger.expire(step, limit)
    left = ledger.tables.postponed if isinstance(ledger.tables, ObjectTables) else 0
    return promoted, expired + left, left


def _expire_more(ledger: Ledger, now: int, limit: int) -> int:
    return ledger.expire(ledger.step(now), limit)


class SkewGuard:
    """Compares this machine's clock with the store's. Logs one warning if they differ by more than `most` milliseconds.

    All decisions use the store's clock, so a wrong clock on this machine starts no job early. But the times in this
    machine's logs cannot be compared with those of others. If the clocks differ by more than a minute, it is unknown
    which one is wrong, and claims are refused.
    """

    def __init__(self, blobs: Blobs, most: int, local: Clock = system_clock) -> None:
        self._blobs = blobs
        self._most = most
        self._local = local
        self._warned = False

    async def check(self) -> None:
        """Compare the clocks. Raise StoreError when they are too far apart to claim jobs."""
        skew = self._local() - await self._blobs.now()
        if abs(skew) > REFUSED_ABOVE:
            raise StoreError(
                f"{self._blobs.url}: {_described(skew)}, more than {REFUSED_ABOVE // 1000} s. No claims until they "
                "agree: set this machine's clock (timedatectl set-ntp true, or chronyc makestep), or the server's."
            )
        if abs(skew) > self._most and not self._warned:
            self._warned = True
            log.warning(
                "%s: %s, more than the %d ms allowed; the store's clock is the one that counts. "
                "Set this machine's clock, or allow more with MILLRACE_MAX_CLOCK_SKEW_MS.",
                self._blobs.url,
                _described(skew),
                self._most,
            )


def _described(skew: int) -> str:
    way = "ahead of" if skew > 0 else "behind"
    return f"this machine's clock is {abs(skew) / 1000:.1f} s {way} the store's"
