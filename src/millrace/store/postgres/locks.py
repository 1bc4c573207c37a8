"""The locks of one step of the ledger in one transaction, which keep what the step has read from changing.

Everything that a decision depends on is locked before it is read: jobs by their rows; lines, keys, queues and limited
tasks by name. If another step holds a lock that is needed, the step does not wait: its transaction is rolled back
(`RetryStep`) and tried again. The next try begins by taking all locks that are known to be needed, in a fixed order,
and waits for each. Steps therefore cannot deadlock.

The gate is a lock that all steps share. A step that closes the gate holds it exclusively, so that no other step runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NoReturn

from millrace.store.sql.ports import Statements

GATE = "gate"


class RetryStep(Exception):
    """Raised if the transaction must be rolled back and tried again, with the locks that are now in the lock plan."""


class Plan:
    """The locks that a step is known to need, collected over all its tries."""

    def __init__(self) -> None:
        self.locks: dict[str, bool] = {}  # name -> whether a shared lock is enough
        self.seqs: set[int] = set()
        self.ids: set[str] = set()
        self.alone = False  # no other step may run at the same time

    def add_lock(self, name: str, shared: bool) -> None:
        self.locks[name] = shared and self.locks.get(name, True)


class StepLocks:
    """The locks of one transaction. With `writes=False`, the step only reads, and nothing is locked."""

    def __init__(self, statements: Statements, plan: Plan, *, writes: bool) -> None:
        self._db = statements
        self.plan = plan
        self.writes = writes
        self.held: dict[str, bool] = {}  # name -> whether the lock is shared

    def begin(self, given: int | None) -> tuple[int, int, Sequence[str]]:
        """Pass or close the gate, and take the planned locks.

        Returns (the time, the id for the step's row of events, the names of the tasks with limits). Raises RetryStep if
        the gate could not be closed in time.
        """
        if self.plan.alone:
            if not self._db.value("close_gate"):
                raise RetryStep
            self.held[GATE] = False
        wanted = self.plan.locks
        [(now, event, tasks)] = self._db.rows("begin_step", given, self.plan.alone, list(wanted), list(wanted.values()))
        self.held.update(wanted)
        return int(now), event, tasks

    def close_gate(self) -> None:
        """Make sure that no other step is running, so that no uncommitted change is missed.

        Raises RetryStep unless the gate is already closed; the next try closes it when it begins.
        """
        if self.writes and self.held.get(GATE) is not False:
            self.plan.alone = True
            raise RetryStep

    def lock(self, names: Iterable[str], *, shared: bool = False) -> None:
        wanted = [name for name in names if self.held.get(name) is None or (self.held[name] and not shared)]
        if not wanted or not self.writes:
            return
        failed = self._db.rows("take_locks", wanted, [shared] * len(wanted), False)
        if failed:
            self.retry_with(dict.fromkeys(wanted, shared))
        self.held.update(dict.fromkeys(wanted, shared))

    def retry_with(self, lacking: Mapping[str, bool] | None = None) -> NoReturn:
        """Add to the lock plan of the next try the locks held so far, and those that another step holds. Then raise
        RetryStep.

        `lacking` maps the name of each such lock to whether it may be shared.
        """
        for name, shared in [*self.held.items(), *(lacking or {}).items()]:
            self.plan.add_lock(name, shared)
        raise RetryStep

    def free(self, names: Iterable[str]) -> set[str]:
        """Take those of these locks that no other step holds. Return the names that this step holds now."""
        names = set(names)
        wanted = [name for name in names if self.held.get(name) is not False]
        if not wanted or not self.writes:
            return names
        taken = {row[0] for row in self._db.rows("take_locks", wanted, [False] * len(wanted), False)}
        self.held.update(dict.fromkeys([name for name in wanted if name not in taken], False))
        return names - taken
