"""Dependents: after a job ends, each job that waits for it is updated in its own transaction.

If a crash interrupts this, the sweep finds the jobs that are left by their keys under `deps/`, and updates them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
                for parent, (state, seq) in done.ended.items():
                    runs_made += await self._update(parent, state, seq)
                for parent in _newly_awaited(done):
                    runs_made += await self.update_children(parent)
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
        return await self._each_child(parent, lambda number: _replaying(parent, number))

    async def update_children(self, parent: str) -> list[EngineRun[Any]]:
        """If the job with this id has ended, update the jobs that wait for it. Return a list of results, each for some
        of them.
        """
        key = self._engine.layout.job(parent)
        view = self._engine.view()
        await view.load([key])
        value = job_value(view.seen[key].value, view.large)
        if value.job is not None:
            return await self._update(parent, value.job.state, value.job.seq) if value.job.state in FINISHED else []
        if value.past:
            last = max(value.past, key=lambda past: past.generation)
            return await self._update(parent, last.state, last.seq)
        return []

    async def _update(self, parent: str, state: State, seq: int) -> list[EngineRun[Any]]:
        return await self._each_child(parent, lambda number: _updating(parent, seq, state, number))

    async def _each_child(self, parent: str, decide: Callable[[int], Question[None]]) -> list[EngineRun[Any]]:
        """Apply `decide` to each child in its own transaction. Return a list of results, each for some of the children.

        A single transaction would need one write of ten thousand objects for a job with ten thousand dependents.
        """
        layout = self._engine.layout
        children = []
        for key in await self._engine.blobs.all_keys(f"deps/{name_of(parent)}/"):
            number, _, name = key.split("/")[2].partition(".")
            children.append((int(number), layout.job_by_name(name)))
        runs: list[EngineRun[Any]] = []
        for start in range(0, len(children), AT_ONCE):
            some = children[start : start + AT_ONCE]
            run = await self._engine.carry_out(
                [(key, decide(number)) for number, key in some],
                options=TableOptions(keys_by_seq=dict(some)),
                expected=[layout.job(parent), *(key for _, key in some)],
            )
            runs.append(run)
        return runs


def _newly_awaited(run: EngineRun[Any]) -> list[str]:
    late = [record for record in run.records.values() if set(record.value.parents) - set(record.was.parents)]
    return [*dict.fromkeys(parent for record in late for parent in record.value.parents)]


def _replaying(parent: str, child: int) -> Question[None]:
    return lambda ledger, now: replaying.return_with(ledger, parent, child, now)


def _updating(parent: str, seq: int, state: State, child: int) -> Question[None]:
    return lambda ledger, now: ledger.parent_ended(parent, seq, state, child, now)
