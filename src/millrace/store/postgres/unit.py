"""A unit of work: one step of the ledger in one transaction, and the locks that make what it reads stay so.

Whatever a step reads in order to decide is locked first: records by their rows, lines, keys, queues and limited tasks
by name. Nobody waits for a lock while holding another: a lock that somebody else holds ends the attempt with `Again`,
and the next attempt takes all that are known to be needed at its beginning, in order, and waits for each. So steps of
this kind cannot wait for each other in a circle.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn, Protocol

Row = Sequence[Any]
GATE = "gate"


class Wire(Protocol):
    """A connection, as the ledger's thread sees it: it blocks. `Held` when NOWAIT met a lock."""

    def rows(self, sql: str, args: Sequence[Any]) -> Sequence[Row]: ...


class Held(Exception):
    """A row that was asked for without waiting is somebody else's just now."""


class Again(Exception):
    """The step has to begin anew, with what the plan now names."""


class Plan:
    """What a step is known to need, gathered over its attempts."""

    def __init__(self) -> None:
        self.locks: dict[str, bool] = {}  # name -> may it be shared?
        self.seqs: set[int] = set()
        self.ids: set[str] = set()
        self.alone = False  # no other step may be under way

    def add_lock(self, name: str, shared: bool) -> None:
        self.locks[name] = shared and self.locks.get(name, True)


class Unit:
    """`writes=False`: only looks, and locks nothing."""

    def __init__(self, wire: Wire, sql: dict[str, str], plan: Plan | None = None, *, writes: bool = True) -> None:
        self._wire = wire
        self._sql = sql
        self.plan = plan or Plan()
        self.writes = writes
        self.held: dict[str, bool] = {}
        self.now = 0
        self.soon = 0  # jobs due by this instant are worth waking somebody for
        self.opened: Counter[str] = Counter()
        self.ended: list[str] = []
        self.replies: list[tuple[str, str]] = []
        self.start()

    def start(self) -> None:
        """Parts add what they remember."""

    def flush(self) -> None:
        """Write everything that was changed; parts add what they hold back."""

    def rows(self, name: str, *args: Any) -> Sequence[Row]:
        return self._wire.rows(self._sql[name], args)

    def value(self, name: str, *args: Any) -> Any:
        return self.rows(name, *args)[0][0]

    def seqs(self, name: str, *args: Any) -> list[int]:
        return [row[0] for row in self.rows(name, *args)]

    # ── locks ─────────────────────────────────────────────────────────────────────────────────

    def begin(self, given: int | None) -> int:
        """Pass the gate, take what is known to be needed, and answer the clock."""
        if self.plan.alone:
            if not self.rows("close_gate")[0][0]:
                raise Again
            self.held[GATE] = False
        wanted = self.plan.locks
        [(self.now, event, tasks)] = self.rows(
            "begin_step", given, self.plan.alone, list(wanted), list(wanted.values())
        )
        self.held.update(wanted)
        self.begun(event, tasks)
        self.take_planned()
        return self.now

    def begun(self, event: int, tasks: Sequence[str]) -> None:
        """What a step is told at its beginning: the number of its events, and the tasks that have limits."""

    def close_gate(self) -> None:
        """Have no other step under way: none may be missed that has not committed yet."""
        if self.writes and self.held.get(GATE) is not False:
            self.plan.alone = True
            raise Again

    def take_planned(self) -> None:
        """At the beginning of an attempt, when its locks are held: parts add what they load."""

    def lock(self, names: Iterable[str], *, shared: bool = False) -> None:
        wanted = [name for name in names if self.held.get(name) is None or (self.held[name] and not shared)]
        if not wanted or not self.writes:
            return
        failed = self.rows("take_locks", wanted, [shared] * len(wanted), False)
        if failed:
            self.begin_anew_with(wanted, shared=shared)
        self.held.update(dict.fromkeys(wanted, shared))

    def begin_anew_with(self, names: Iterable[str], *, shared: bool) -> NoReturn:
        """Somebody else has them: the next attempt takes them first, with all that this one had."""
        for name, mode in self.held.items():
            self.plan.add_lock(name, mode)
        for name in names:
            self.plan.add_lock(name, shared)
        raise Again

    def free_ones(self, names: Iterable[str]) -> set[str]:
        """Of these locks, those that could be taken, or were already."""
        names = set(names)
        wanted = [name for name in names if self.held.get(name) is not False]
        if not wanted or not self.writes:
            return names
        taken = {row[0] for row in self.rows("take_locks", wanted, [False] * len(wanted), False)}
        self.held.update(dict.fromkeys([name for name in wanted if name not in taken], False))
        return names - taken

    def stir(self, queue: str, jobs: int) -> None:
        self.opened[queue] += jobs
