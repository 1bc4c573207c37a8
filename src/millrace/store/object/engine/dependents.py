"""Dependents: after a job ends, each job that waits for it is updated in its own transaction.

If a crash interrupts this, the sweep finds the jobs that are left by their keys under `deps/`, and updates them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from millrace.domain.job import FINISHED, State
from millrace.domain.rules import replaying
from millrace.store.object.engine.commit import EngineRun
from millrace.store.object.engine.job_table import TableOptions
from millrace.store.object.engine.values import job_value
from millrace.store.object.keys import name_of

if TYPE_CHECKING:
    from millrace.store.object.engine.engine import Engine, Question

AT_ONCE = 100


class Dependents:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def update(self, run: EngineRun[Any], *, recall: bool = True) -> None:
        """Update the dependents of all jobs that ended in this operation. Repeat this for the jobs that end as a
        result.

        Also update jobs that began to wait, in this operation, for a job that had already ended. With `recall`, replay
        jobs that died because of a job that this operation replayed.
        """
        front: list[EngineRun[Any]] = [run]
        while front:
            runs_made: list[EngineRun[Any]] = []
            for done in front:
                runs_made += await self._update(done.ended)
                runs_made += await self.update_children(_newly_awaited(done))
                for parent in sorted(done.recalled) if recall else ():
                    runs_made += await self.replay_children(parent)
            front = runs_made

    async def recall(self, runs: Sequence[EngineRun[Any]]) -> None:
        """Replay the dependents that `update` with `recall=False` did not replay."""
        for parent in [parent for run in runs for parent in sorted(run.recalled)]:
            for back in await self.replay_children(parent):
                await self.update(back)

    async def replay_children(self, parent: str) -> list[EngineRun[Any]]:
        """Replay the jobs that died because this parent had died or was cancelled. The parent has been replayed. Return
        a list of results, each for some of the children.
        """
        return await self._each_child([parent], _replaying)

    async def update_children(self, parents: Sequence[str]) -> list[EngineRun[Any]]:
        """Update the jobs that wait for those of these ids whose job has ended. Return one result per batch."""
        if not parents:
            return []
        view = self._engine.view()
        keys = {parent: self._engine.layout.job(parent) for parent in parents}
        await view.load([*dict.fromkeys(keys.values())])
        ended: dict[str, tuple[State, int]] = {}
        for parent, key in keys.items():
            value = job_value(view.seen[key].value, view.large)
            if value.job is not None and value.job.state in FINISHED:
                ended[parent] = (value.job.state, value.job.seq)
            elif value.job is None and value.past:
                last = max(value.past, key=lambda past: past.generation)
                ended[parent] = (last.state, last.seq)
        return await self._update(ended)

    async def _update(self, ended: Mapping[str, tuple[State, int]]) -> list[EngineRun[Any]]:
        def decide(parent: str, child: int) -> Question[None]:
            state, seq = ended[parent]
            return lambda ledger, now: ledger.parent_ended(parent, seq, state, child, now)

        return await self._each_child([*ended], decide)

    async def _each_child(
        self, parents: Sequence[str], decide: Callable[[str, int], Question[None]]
    ) -> list[EngineRun[Any]]:
        """Apply `decide` to each child of these parents in its own transaction. Return one result per batch of
        children.

        A single transaction would need one write of ten thousand objects for a job with ten thousand dependents.
        """
        layout = self._engine.layout
        runs: list[EngineRun[Any]] = []
        children = await self._children(parents)
        for start in range(0, len(children), AT_ONCE):
            some = children[start : start + AT_ONCE]
            run = await self._engine.carry_out(
                [(key, decide(parent, number)) for parent, number, key in some],
                options=TableOptions(keys_by_seq={number: key for _, number, key in some}),
                expected=[*(layout.job(parent) for parent, _, _ in some), *(key for _, _, key in some)],
            )
            runs.append(run)
        return runs

    async def _children(self, parents: Sequence[str]) -> list[tuple[str, int, str]]:
        """Return (parent, seq, object) for each job that depends on one of these parents."""
        listings = await asyncio.gather(
            *(self._engine.blobs.all_keys(f"deps/{name_of(parent)}/") for parent in parents)
        )
        children: list[tuple[str, int, str]] = []
        for parent, keys in zip(parents, listings, strict=True):
            for key in keys:
                number, _, name = key.split("/")[2].partition(".")
                children.append((parent, int(number), self._engine.layout.job_by_name(name)))
        return children


def _newly_awaited(run: EngineRun[Any]) -> list[str]:
    late = [record for record in run.records.values() if set(record.value.parents) - set(record.was.parents)]
    return [*dict.fromkeys(parent for record in late for parent in record.value.parents)]


def _replaying(parent: str, child: int) -> Question[None]:
    return lambda ledger, now: replaying.return_with(ledger, parent, child, now)
