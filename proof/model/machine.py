"""The state machine of the model: its state, one step, and what must hold after each step.

The rules, which define what can be asked, are in `store_machine`.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, ClassVar

import msgspec
from hypothesis.stateful import RuleBasedStateMachine

from millrace.domain.change import RETURNS_TO_WAITING, Change
from millrace.domain.event import Event, Kind
from millrace.domain.job import LIVE, Job, Spec, State
from millrace.domain.outcome import Outcome
from millrace.domain.request import Claim, Enqueued, Receipt, Reclaim
from millrace.domain.rules.decide import decide
from millrace.store.protocol import Store, Target
from millrace.store.transfer import StoreTransfer
from millrace.testing.clock import VirtualClock
from millrace.testing.invariants import check, gather
from proof.model import draw
from proof.model.coverage import COVERAGE
from proof.model.oracle import Tokens, buckets_left_ahead, expected_claim
from proof.model.pair import Pair, Refusal
from proof.model.subject import Held, Subject
from proof.model.witness import Witness

FULL_COMPARISON = 10  # steps between two full comparisons
CHANCE = 0.5
FREE: dict[str, dict[str, Any]] = {
    "queue": {"max_running": None, "rate": None, "paused": False, "paused_lanes": []},
    "task": {"max_running": None, "rate": None},
}
ROUNDS = 200  # rounds of claiming and completing at the end: more than any example has jobs


class Machine(RuleBasedStateMachine):
    """The machine. Use `store_machine`, which sets the store to drive."""

    subject: ClassVar[Subject]
    moves_at_the_end = False

    def __init__(self) -> None:
        super().__init__()
        self.coverage = COVERAGE[self.subject.label]
        self.clock = VirtualClock()
        self.runner = self.subject.runner or asyncio.Runner()
        self.pair = Pair(self.subject.make(self.clock), self.clock)
        self.witness = Witness(self.coverage)
        self.tokens = Tokens()
        self.sent: list[Spec] = []
        self.held: list[Held] = []
        self.stale: list[Held] = []
        self.cursors: list[tuple[str, str]] = []
        self.events: list[Event] = []  # events of the last step
        self.lost = False  # whether some were trimmed before they were read
        self.steps = 0
        self.time_went_back = False
        self.sound = True
        self.run(self.pair.stores[0].connect())

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        self.sound = False
        answer = self.runner.get_loop().run_until_complete(work)  # `Runner.run` sets a signal handler each time
        self.sound = True
        return answer

    @property
    def tables(self) -> Any:
        return self.pair.reference._tables

    def records(self) -> list[Job]:
        """The reference's own records. Do not keep or change them."""
        return list(self.tables.scan(0, 1 << 62, 1 << 30))

    def step(self, what: str, question: Callable[[Store, int], Awaitable[Any]], *touched: str) -> list[Any]:
        """Run a step on both stores, compare the answers and the effects, and return both answers."""
        self.coverage.note(f"rule: {what}")
        answers: list[Any] = self.run(self._step(what, question, touched))
        return answers

    async def _step(self, what: str, question: Callable[[Store, int], Awaitable[Any]], touched: Sequence[str]) -> Any:
        pair = self.pair
        answers = await pair.both(question)
        self.events, self.lost = await pair.news()
        self.witness.saw(self.events, self.lost)
        pair.same(answers, what)
        await pair.jobs(list(dict.fromkeys([*touched, *(event.job for event in self.events)])))
        self.witness.agrees(self.tables, self.records())
        self.steps += 1
        if self.steps % FULL_COMPARISON == 0:
            await pair.everything(draw.QUEUES)
        return answers

    # ── producing ─────────────────────────────────────────────────────────────────────────────

    def spec(self, wish: draw.Wish, batch: Sequence[draw.Wish] = ()) -> Spec:
        if wish.again is not None and self.sent:
            return self.sent[-1 - wish.again % len(self.sent)]
        number = len(self.sent)
        name = f"n{number}" if wish.fresh else draw.POOL[wish.name]
        after = tuple(self.parent(choice, number, batch) for choice in wish.after)
        fields = {"retry": draw.STEADY, "token": f"t{number}", "after": after, **wish.fields}
        spec = Spec(id=name, **fields)
        self.sent.append(spec)
        return spec

    def parent(self, choice: int, number: int, batch: Sequence[draw.Wish]) -> str:
        """A live job, one that has ended, an old name, the next of this batch, or an unknown id."""
        if choice == -2:
            return "missing"
        if choice == -1:
            return f"n{number + 1}" if batch else f"n{number}"
        live = [job.id for job in self.records() if job.state in LIVE]
        if choice < min(4, len(live)):
            return live[-1 - choice]
        known = list(self.pair.known)
        return known[-1 - choice] if choice < min(6, len(known)) else draw.POOL[choice % len(draw.POOL)]

    def enqueue_all(self, what: str, specs: Sequence[Spec]) -> None:
        _, answer = self.step(what, lambda store, _: store.enqueue(specs), *(spec.id for spec in specs))
        if isinstance(answer, Refusal):
            self.coverage.note(f"enqueue: {answer.error}")
            assert not self.events, f"{answer.error} leaves no trace: {self.events}"
            return
        for spec, item in zip(specs, answer, strict=True):
            asked_to_rerun = spec.rerun_expired and spec.reuse
            assert not (asked_to_rerun and item.result_expired), f"{spec} was to run again: {item}"
            self.coverage.note(f"enqueue: {item.status}" + (f" by {item.by}" if item.by else ""))
            self.check_answer(item)

    def check_answer(self, answer: Enqueued) -> None:
        """The answer shows the job as written, even if it died at once and its record is gone."""
        states = [event.state for event in self.events if event.seq == answer.seq and event.kind is not Kind.PRUNED]
        if states and states[0] == State.WAITING.value:
            assert answer.state.value in states, f"{answer} was never {answer.state}: {states}"

    # ── consuming ────────────────────────────────────────────────────────────────────────────

    def take(self, what: str, request: Claim) -> list[Held]:
        now = self.clock()
        jobs = self.records()
        sure = not self.time_went_back and not any(_has_expired(job, now) for job in jobs)
        expected = expected_claim(self.tables, jobs, request, self.tokens, now) if sure else None
        self.check_sleep(request, expected, now)
        theirs, ours = self.step(what, lambda store, _: store.claim(request))
        if expected is not None:
            assert [job.id for job in ours] == expected, f"a claim must take {expected}, not {[job.id for job in ours]}"
        self.spend(ours, now)
        if len(ours) < request.limit:
            left = buckets_left_ahead(self.tables, self.records(), request, now)
            assert left == [], f"the clock was set back, and these buckets still wait for the old time: {left}"
        self.witness.took(ours, now)
        return self.keep(theirs, ours)

    def check_sleep(self, request: Claim, expected: list[str] | None, now: int) -> None:
        """The outlook must not let a worker sleep while it can claim something."""
        if expected:
            due = self.pair.reference._ledger.next_due(request.queues, request.tasks, now)
            assert due is not None and due <= now, f"{expected} can be claimed, and a worker would sleep until {due}"

    def spend(self, jobs: Sequence[Job], now: int) -> None:
        self.tokens.taken.update(job.queue for job in jobs)
        for name in {job.queue for job in jobs}:
            row = self.tables.queue(name)
            self.tokens.spend("queue", name, row.settings, sum(job.queue == name for job in jobs), now)
            assert row.settings.max_running is None or row.running <= row.settings.max_running, f"over the limit: {row}"
        for name in {job.task for job in jobs}:
            task = self.tables.task(name)
            if task is not None:
                self.tokens.spend("task", name, task.limits, sum(job.task == name for job in jobs), now)

    def keep(self, theirs: Sequence[Job], ours: Sequence[Job]) -> list[Held]:
        runs = []
        for their_job, job in zip(theirs, ours, strict=True):
            runs.append(Held((their_job.lease, job.lease), copy.copy(job)))
            their_job.failures = job.failures = 99  # changing a returned job must not change the store
        self.held += runs
        return runs

    def end(self, what: str, runs: list[Held], outcome: Outcome, carried: draw.Wish | None) -> None:
        jobs = () if carried is None else (self.spec(carried),)
        changes: list[Change] = [
            msgspec.structs.replace(
                decide(run.job, outcome, CHANCE),
                jobs=jobs if run is runs[0] else (),
                log=b"[2]" if run.job.attempt % 3 == 2 else None,
                keep_result=draw.keep_result_of(run.job),
            )
            for run in runs
        ]
        asked = {job.lease_id for job in self.records() if job.cancel_requested}
        _, receipts = self.step(
            what,
            lambda store, side: store.settle([(r.leases[side], c) for r, c in zip(runs, changes, strict=True)]),
            *(run.job.id for run in runs),
        )
        if isinstance(receipts, Refusal):  # the carried jobs would form a cycle
            self.coverage.note(f"settle: {receipts.error}")
            assert not self.events, f"{receipts.error} leaves no trace: {self.events}"
            return
        for run, change, receipt in zip(runs, changes, receipts, strict=True):
            self.coverage.note(f"settle: {receipt.value}")
            self.check_receipt(run.leases[1].id, receipt, asked)
            if receipt is Receipt.OK and run.leases[1].id in asked:
                assert change.verb not in RETURNS_TO_WAITING, f"{run.job.id} was to be cancelled, not to wait again"
        self.retire(runs)

    def check_receipt(self, lease: str, receipt: Receipt, asked: set[str | None]) -> None:
        """LOST must have no effect; CANCELLING means that a requested cancellation was carried out."""
        ends = [event.kind for event in self.events if event.lease == lease]
        if not self.lost:
            assert len(ends) == (receipt is not Receipt.LOST), f"settled {receipt}, but it is written: {ends}"
        if ends:
            cancelling = lease in asked and ends[0] is Kind.CANCELLED
            assert (receipt is Receipt.CANCELLING) == cancelling, f"{receipt} for a run that ended {ends[0]}"

    def retire(self, runs: Sequence[Held]) -> None:
        for run in runs:
            if run in self.held:
                self.held.remove(run)
                self.stale.append(run)

    def take_over(self, request: Reclaim, spared: Sequence[Held]) -> list[Held]:
        before = {job.seq: copy.copy(job) for job in self.records()}
        now = self.clock()

        def question(store: Store, side: int) -> Awaitable[list[Job]]:
            ignore = frozenset(run.leases[side].id for run in spared)
            return store.reclaim(msgspec.structs.replace(request, ignore=ignore))

        theirs, ours = self.step("reclaim", question)
        spared_seqs = {run.leases[1].seq for run in spared if run in self.held}
        self.witness.took_over(before, ours, now)
        assert not spared_seqs & {job.seq for job in ours}, "a lease that was to be ignored was taken over"
        taken = {job.seq for job in ours}
        self.retire([run for run in self.held if run.leases[1].seq in taken])
        return self.keep(theirs, ours)

    # ── the end ───────────────────────────────────────────────────────────────────────────────

    def teardown(self) -> None:
        try:
            if self.sound:
                self.run(self._finish())
        finally:
            store = self.pair.stores[0]
            self.runner.get_loop().run_until_complete(store.close())
            if self.subject.runner is None:
                self.runner.close()
            if self.subject.discard is not None:
                self.subject.discard(store)

    async def _finish(self) -> None:
        """Compare everything once more; then remove all limits, and check that every job that can run does. Or move
        everything into a new store, and compare that.
        """
        pair = self.pair
        await pair.everything(draw.QUEUES, histories=True)
        await self._check_invariants()
        if self.moves_at_the_end:
            await self._move()
            return
        for name in draw.QUEUES:
            await self._free("queue", name)
        for name in draw.TASKS:
            await self._free("task", name)
        self.clock.advance(86_400.0)
        for _ in range(ROUNDS):
            if not await self._round():
                break
        left = [job.id for job in self.records() if job.state is State.RUNNING or _may_run(job)]
        assert left == [], f"nothing stands in their way, and yet these never ran: {left}"
        await pair.everything(draw.QUEUES)

    async def _move(self) -> None:
        """Move the reference into a new store of the kind under test, and compare all that both show."""
        self.coverage.note("rule: move to a new store")
        source = self.pair.reference
        source.url = "memory://reference"  # a move refuses two stores with one URL
        running = await source.get([job.id for job in self.records() if job.state is State.RUNNING])
        await source.settle([(job.lease, Change.completed()) for job in running if job is not None])
        for worker in await source.workers():  # they are not moved
            await source.beat(worker.info, 0)
        target = self.subject.make(self.clock)
        await target.connect()
        try:
            await StoreTransfer(source, target).run()
            moved = Pair(target, self.clock, source)
            moved.known = dict.fromkeys(job.id for job in self.records())
            await moved.everything(draw.QUEUES, histories=True, is_import=True)
        finally:
            await target.close()
            if self.subject.discard is not None:
                self.subject.discard(target)

    async def _check_invariants(self) -> None:
        """Run the shared invariant checker over whole histories, if the clock only moved forward.

        A limit may have been lowered below what already ran; `spend` checks limits at each claim instead.
        """
        trimmed, _ = self.tables.feed_bounds()
        if not trimmed and not self.time_went_back:
            violations = check(await gather(self.pair.stores[0]))
            found = [str(violation) for violation in violations if violation.name != "max_running"]
            assert found == [], "\n".join(found)

    async def _free(self, target: Target, name: str) -> None:
        await self.pair.ask("control", lambda store, _: store.control(target, name, FREE[target]))

    async def _round(self) -> bool:
        """Complete what runs, then claim. Returns whether there was anything to claim."""
        pair = self.pair
        await pair.both(lambda store, _: store.reclaim(Reclaim("last", 1_000)))
        running = [job.id for job in self.records() if job.state is State.RUNNING]
        jobs = await pair.both(lambda store, _: store.get(running))
        done = Change.completed()
        await pair.ask("settle", lambda store, side: store.settle([(job.lease, done) for job in jobs[side]]))
        claimed = await pair.both(lambda store, _: store.claim(Claim(draw.QUEUES, "last", 100)))
        await pair.news()
        return any(claimed)


def _has_expired(job: Job, now: int) -> bool:
    return job.state is State.WAITING and job.expires_at is not None and job.expires_at <= now


def _may_run(job: Job) -> bool:
    return job.state is State.WAITING and not job.blocked
