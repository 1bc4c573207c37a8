"""Dependents: whoever waits for an id is told of its end after it, each in a transaction of its own.

What a crash leaves untold is found by the keys under `deps/`, and told by the sweep.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from millrace.domain.job import FINISHED, State
from millrace.domain.ledger import Ledger
from millrace.store.object.keys import name_of
from millrace.store.object.run import Item, Run
from millrace.store.object.values import job_value
from millrace.store.object.view import all_keys

if TYPE_CHECKING:
    from millrace.store.object.engine import Engine

AT_ONCE = 100


class Dependents:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def tell(self, run: Run[Any]) -> None:
        """Whoever waited for what has ended, and whoever began to wait for what had just ended, is told; and so on."""
        front: list[Run[Any]] = [run]
        while front:
            told: list[Run[Any]] = []
            for done in front:
                for parent, (state, seq) in done.ended.items():
                    told += await self._tell(parent, state, seq)
                for parent in _newly_awaited(done):
                    told += await self.of(parent)
            front = told

    async def of(self, parent: str) -> list[Run[Any]]:
        """Tell those who wait for an id, if it has ended."""
        key = self._engine.layout.job(parent)
        view = self._engine.view()
        await view.load([key])
        value = job_value(view.seen[key].value, view.large)
        if value.job is not None:
            return await self._tell(parent, value.job.state, value.job.seq) if value.job.state in FINISHED else []
        if value.past:
            last = max(value.past, key=lambda past: past.generation)
            return await self._tell(parent, last.state, last.seq)
        return []

    async def _tell(self, parent: str, state: State, seq: int) -> list[Run[Any]]:
        """Each for itself: an end with ten thousand dependents is not one write of ten thousand objects."""
        layout = self._engine.layout
        children = []
        for key in await all_keys(self._engine.objects, f"deps/{name_of(parent)}/"):
            number, _, name = key.split("/")[2].partition(".")
            children.append((int(number), layout.job_by_name(name)))
        runs: list[Run[Any]] = []
        for start in range(0, len(children), AT_ONCE):
            some = children[start : start + AT_ONCE]
            run = await self._engine.carry_out(
                [Item(key, _told(parent, seq, state, number)) for number, key in some],
                places=dict(some),
                expected=[layout.job(parent), *(key for _, key in some)],
            )
            runs.append(run)
        return runs


def _newly_awaited(run: Run[Any]) -> list[str]:
    late = [record for record in run.records.values() if set(record.value.parents) - set(record.was.parents)]
    return [*dict.fromkeys(parent for record in late for parent in record.value.parents)]


def _told(parent: str, seq: int, state: State, child: int) -> Callable[[Ledger, int], None]:
    return lambda ledger, now: ledger.parent_ended(parent, seq, state, child, now)
