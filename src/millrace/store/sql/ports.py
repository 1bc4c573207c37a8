"""What the parts of a unit of work depend on: statements, locks, effects to announce after the commit, and the call
batch (`Batch`).

Statements are named and are in `queries/*.sql` of each store. A store whose steps run one after the other needs no
locks (`NoLocks`). With concurrent steps, everything that a decision depends on is locked before it is read: lines,
keys, queues, limited tasks and schedules by name, jobs by their rows.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib import resources
from typing import Any, Protocol

from millrace.domain.job import Job, Spec
from millrace.domain.tables import Place

_NOTHING_TO_SEND = nullcontext()
_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)

Row = Sequence[Any]
Named = tuple[str, str]  # (queue, name of a line or key)
News = tuple[Mapping[Place, int], Sequence[str], Sequence[tuple[str, str]]]


class Statements(ABC):
    """Runs named statements in the transaction of one step. Methods block until the database has replied."""

    @abstractmethod
    def rows(self, name: str, *args: Any) -> Sequence[Row]:
        """Run a statement and return its rows. A list argument is passed as a set of values."""

    @abstractmethod
    def rows_of(self, name: str, keys: Sequence[tuple[Any, ...]]) -> Sequence[Row]:
        """Run a statement once for many keys, each of which is a tuple of several columns, and return its rows."""

    @abstractmethod
    def write(self, name: str, rows: Sequence[tuple[Any, ...]]) -> None:
        """Run a statement that writes these rows."""

    @abstractmethod
    def delete(self, name: str, keys: Sequence[tuple[Any, ...]]) -> None:
        """Run a statement that deletes the rows with these keys, each of which is a tuple of several columns."""

    def together(self) -> AbstractContextManager[None]:
        """Allow the writes and deletes of the block to be sent together, at its end. No two of them may change the same
        row, and no read of the block may depend on them.
        """
        return _NOTHING_TO_SEND

    def value(self, name: str, *args: Any) -> Any:
        return self.rows(name, *args)[0][0]

    def seqs(self, name: str, *args: Any) -> list[int]:
        return [row[0] for row in self.rows(name, *args)]


def load_statements(package: str) -> dict[str, str]:
    """Return the statements in `queries/*.sql` of a package, keyed by the names in their `-- name:` lines."""
    found: dict[str, str] = {}
    for file in sorted(resources.files(package).joinpath("queries").iterdir(), key=lambda entry: entry.name):
        if not file.name.endswith(".sql"):
            continue
        _, *parts = _NAME.split(file.read_text("utf-8"))
        for name, body in zip(parts[::2], parts[1::2], strict=True):
            if name in found:
                raise ValueError(f"two statements are called {name!r}")
            found[name] = body.strip().removesuffix(";")
    return found


class Locks(Protocol):
    def lock(self, names: Iterable[str], *, shared: bool = False) -> None:
        """Take these locks until the end of the step. If another step holds one of them, this step is rolled back and
        retried.
        """
        ...

    def free(self, names: Iterable[str]) -> set[str]:
        """Take those of these locks that no other step holds. Return the names that this step holds now."""
        ...

    def close_gate(self) -> None:
        """Make sure that no other step is running, so that no uncommitted change is missed.

        Every step passes the gate, a lock that steps share unless one of them closes it. This step may be retried to
        close it.
        """
        ...


class NoLocks:
    def lock(self, names: Iterable[str], *, shared: bool = False) -> None:
        pass

    def free(self, names: Iterable[str]) -> set[str]:
        return set(names)

    def close_gate(self) -> None:
        pass


def line_lock(queue: str, name: str) -> str:
    return f"line {queue} {name}"


def key_lock(queue: str, key: str) -> str:
    return f"key {queue} {key}"


class Effects:
    """What to announce after the commit of a step: jobs that became claimable, jobs that ended, and reply addresses.

    A reply address identifies the process that waits for the end of a job. `watched` has the ids of the jobs whose end
    this process waits for, and `reply_to` returns the reply address of this process.
    """

    def __init__(self, watched: Mapping[str, int] | None = None, reply_to: Callable[[], str | None] | None = None):
        self.watched: Mapping[str, int] = {} if watched is None else watched
        self._reply_to = reply_to
        self.touched = False  # whether the current call has changed anything
        self.soon = 0  # jobs due by this instant are worth waking a worker for
        self.opened: defaultdict[Place, int] = defaultdict(int)  # faster to create than a Counter
        self.ended: list[str] = []
        self.replies: list[tuple[str, str]] = []

    def begin(self, soon: int) -> None:
        """Start the next call of the ledger. Jobs that are due at `soon` or earlier are announced as claimable."""
        self.touched = False
        self.soon = soon

    def reply_to(self, job_id: str) -> str | None:
        """Return the reply address to store with a new job if this process waits for the job's end, otherwise None."""
        return self._reply_to() if self._reply_to is not None and job_id in self.watched else None

    def wake(self, place: Place, jobs: int) -> None:
        self.opened[place] += jobs

    def take(self) -> News:
        """Return and clear the effects since the last call.

        They are (number of claimable jobs by (queue, task), ids of ended jobs, (reply address, id) of ended jobs).
        """
        news = self.opened, self.ended, self.replies
        self.opened, self.ended, self.replies = defaultdict(int), [], []
        return news


class Batch:
    """The jobs and specs that the current call of the ledger works on.

    When a part of the unit of work needs a row, it also reads the rows that the rest of the call batch will need. The
    number of statements of a call therefore does not depend on the number of its jobs.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self._jobs: list[Job] = []
        self._ids: list[str] = []
        self._owners: list[str] = []
        self._specs: Sequence[Spec] = ()
        self._new_lines: set[Named] = set()

    # ── what the batch contains ───────────────────────────────────────────────────────────────

    def of_jobs(self, jobs: list[Job], ids: list[str]) -> None:
        """Replace the jobs of the call batch. `ids` are ids that were looked up, whether or not they have a job."""
        self._jobs, self._ids = jobs, ids

    def add_jobs(self, jobs: Iterable[Job]) -> None:
        """Add jobs that the call affects through its own jobs and specs, such as children and owners of unique keys."""
        self._jobs.extend(jobs)

    def of_specs(self, specs: Sequence[Spec], ids: list[str]) -> None:
        """Replace the specs of the call batch. `ids` are the ids of the new jobs and of their parents."""
        self._specs, self._ids, self._new_lines = specs, ids, set()

    def of_lines(self, lines: Iterable[Named]) -> None:
        """Set the lines that the jobs of the specs may belong to."""
        self._new_lines = set(lines)

    def add_owners(self, ids: Iterable[str]) -> None:
        """Add the ids of the jobs that own unique keys of the specs."""
        self._owners.extend(ids)

    # ── what it needs ─────────────────────────────────────────────────────────────────────────

    @property
    def new_jobs(self) -> int:
        return len(self._specs)

    @property
    def jobs(self) -> Sequence[Job]:
        return self._jobs

    def ids(self) -> list[str]:
        return [*self._ids, *(job.spec.id for job in self._jobs)]

    def parents(self) -> set[str]:
        return {parent for job in self._jobs for parent in job.spec.after}

    def take_owners(self) -> list[str]:
        """Return the owners of keys that were added since the last call."""
        owners, self._owners = self._owners, []
        return owners

    def _all_specs(self) -> Iterator[Spec]:
        yield from (job.spec for job in self._jobs)
        yield from self._specs

    def queues(self) -> set[str]:
        return {spec.queue for spec in self._all_specs()}

    def tasks(self) -> set[str]:
        return {job.spec.task for job in self._jobs}

    def keys(self) -> set[Named]:
        return {(spec.queue, spec.key) for spec in self._all_specs() if spec.key is not None}

    def lines(self) -> Counter[Named]:
        """Return the lines of the jobs in the call batch. Each has the number of its waiting members that are in the
        call batch.
        """
        found: Counter[Named] = Counter()
        for job in self._jobs:
            if (line := job.line) is not None:
                found[job.spec.queue, line] += job.in_line
        found.update(dict.fromkeys(self._new_lines, 0))
        return found
