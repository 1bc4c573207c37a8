"""Moves of the model with batches: stale, doubled, forged and unknown leases; pools that change their lanes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec
from hypothesis import strategies as st

from millrace.domain.job import FINISHED, Lease, State
from millrace.domain.outcome import Outcome, Returned
from millrace.domain.request import Claim, Extension, Receipt
from millrace.domain.rules.decide import decide
from proof.model import draw
from proof.model.machine import CHANCE
from proof.model.moods import move
from proof.model.operators import Operators
from proof.model.pair import Refusal
from proof.model.subject import Held

UNKNOWN_SEQ = 1 << 40  # a seq that no job has


class Batches(Operators):
    def mixed(self, choices: Sequence[tuple[str, int]]) -> list[Held]:
        """Leases of these kinds, as far as there are any. Held leases are used in turn."""
        runs: list[Held] = []
        for kind, index in choices:
            held = self.held[len(runs) % len(self.held)]
            other = self.held[(len(runs) + 1 + index) % len(self.held)]
            if kind == "stale" and self.stale:
                runs.append(self.stale[-1 - index % len(self.stale)])
            elif kind == "twice" and runs:
                runs.append(runs[index % len(runs)])
            elif kind == "lost" and (taken_over := self.taken_over()):
                runs.append(taken_over[index % len(taken_over)])
            elif kind in ("forged", "lost") and other is not held:
                runs.append(Held(_with_ids_of(held.leases, other.leases), held.job))
            elif kind == "unknown":
                theirs, ours = held.leases
                runs.append(
                    Held((Lease("nobody", UNKNOWN_SEQ, theirs.id), Lease("nobody", UNKNOWN_SEQ, ours.id)), held.job)
                )
            else:
                runs.append(held)
        return runs

    def taken_over(self) -> list[Held]:
        """Old leases of jobs that run under another lease."""
        seqs = {run.leases[1].seq for run in self.held}
        return [run for run in self.stale if run.leases[1].seq in seqs]

    @move(batch=draw.bare_batches, limit=st.sampled_from((20, 3, 0)))
    def enqueue_bare(self, batch: list[draw.Wish], limit: int) -> None:
        """Enqueue jobs that no rule concerns, and claim them: these take the fast paths."""
        self.enqueue_all("enqueue_bare", [self.spec(wish, batch) for wish in batch])
        self.take("enqueue_bare", Claim(("q", "r"), "w1", limit))

    @move(needs="held", choices=draw.lease_lists, outcomes=draw.many_ends, more=st.sampled_from((20, 0)))
    def settle_batch(self, choices: list[tuple[str, int]], outcomes: list[Outcome], more: int) -> None:
        if more:
            self.take("settle_batch", Claim(draw.QUEUES, "w1", more))
        runs = self.mixed(choices)
        changes = [decide(run.job, outcomes[n % len(outcomes)], CHANCE) for n, run in enumerate(runs)]
        _, receipts = self.step(
            "settle_batch",
            lambda store, side: store.settle([(r.leases[side], c) for r, c in zip(runs, changes, strict=True)]),
            *(run.job.id for run in runs),
        )
        assert not isinstance(receipts, Refusal)
        self.coverage.note("batch: " + " and ".join(["settle", *sorted({receipt.value for receipt in receipts})]))
        written = Counter(
            r.leases[1].id for r, receipt in zip(runs, receipts, strict=True) if receipt is not Receipt.LOST
        )
        assert all(times == 1 for times in written.values()), f"a run was settled twice: {written}"
        if not self.lost:
            ends = Counter(event.lease for event in self.events if event.lease in {r.leases[1].id for r in runs})
            assert ends == written, f"answered {receipts}, but written was {ends}"
        self.retire([run for run in runs if run.leases[1].id in written])

    @move(
        needs="held",
        choices=draw.lease_lists,
        by=draw.leases,
        more=st.sampled_from((20, 0)),
        progress=st.sampled_from((None, None, None, b"50%")),  # a job with progress is off the fast paths
        log=st.sampled_from((None, None, None, b"[1]")),  # as well
    )
    def extend_batch(
        self, choices: list[tuple[str, int]], by: int | None, more: int, progress: bytes | None, log: bytes | None
    ) -> None:
        if more:
            self.take("extend_batch", Claim(draw.QUEUES, "w1", more))
        runs = self.mixed(choices)
        _, receipts = self.step(
            "extend_batch",
            lambda store, side: store.extend([Extension(run.leases[side], by, progress, log) for run in runs]),
            *(run.job.id for run in runs),
        )
        self.coverage.note("batch: " + " and ".join(["extend", *sorted({receipt.value for receipt in receipts})]))
        for run, receipt in zip(runs, receipts, strict=True):
            if receipt is not Receipt.LOST:
                self.witness.extended(run.leases[1], self.clock() + (run.job.spec.lease if by is None else by))

    @move(lanes=st.sampled_from((3, 1, 4, 2, None)), most=st.sampled_from((5, 20)))
    def change_lanes(self, lanes: int | None, most: int) -> None:
        """Change the number of lanes of an empty pool; then replay jobs that ended before."""
        runs = [run for run in self.held if run.job.queue == "pool"]
        if runs:
            self.end("change_lanes", runs, Returned(b"ok"), None)
        self.step("drain", lambda store, _: store.drain("pool", 1_000))
        self.control_queue("pool", {"lanes": lanes, "paused_lanes": []})
        ended = [job for job in self.records() if job.queue == "pool" and job.state in FINISHED][-most:]
        before = {job.id: job.lane for job in ended}
        ids = list(before)
        self.on_jobs("replay", ids, lambda store, mine: store.replay(mine))
        now = {job.id: job.lane for job in self.records() if job.state is State.WAITING}
        if any(now.get(job_id, lane) != lane for job_id, lane in before.items()):
            self.coverage.note("batch: replayed into another lane")
        self.coverage.note("rule: change_lanes")


def _with_ids_of(leases: tuple[Lease, Lease], others: tuple[Lease, Lease]) -> tuple[Lease, Lease]:
    mine, theirs = leases, others
    return (
        msgspec.structs.replace(mine[0], id=theirs[0].id),
        msgspec.structs.replace(mine[1], id=theirs[1].id),
    )
