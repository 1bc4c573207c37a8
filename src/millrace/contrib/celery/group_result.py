"""`GroupResult`: the result objects of a group, in order."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from millrace.contrib.celery import states
from millrace.contrib.celery.blocking import blocking
from millrace.contrib.celery.eager import EagerResult
from millrace.contrib.celery.exceptions import NotCovered
from millrace.contrib.celery.result import NOT_COVERED, AsyncResult, state_of


class GroupResult:
    """The results of a group, in order."""

    def __init__(
        self,
        id: str,
        results: Sequence[AsyncResult | GroupResult],
        parent: AsyncResult | GroupResult | None = None,
    ) -> None:
        self.id = id
        self.results = list(results)
        self.parent = parent
        self.children: list[AsyncResult | GroupResult] = []

    def get(self, timeout: float | None = None, propagate: bool = True, **options: Any) -> list[Any]:
        """Wait for all jobs, and return their results. Raises the error of the first job that failed."""
        deadline = None if timeout is None else time.monotonic() + timeout
        values = []
        for result in self.results:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            values.append(result.get(left, propagate, **options))
        return values

    join = get

    def _states(self) -> list[str]:
        results = list(self.leaves())
        eager = [result.state for result in results if isinstance(result, EagerResult)]
        rest = [result for result in results if not isinstance(result, EagerResult)]
        if not rest:
            return eager
        jobs = blocking(lambda: rest[0].app.millrace.sync.jobs.get([result.id for result in rest]))
        return [*eager, *map(state_of, jobs)]

    def leaves(self) -> Iterator[AsyncResult]:
        """Iterate over the results of all jobs, also of groups inside this one."""
        for result in self.results:
            if isinstance(result, GroupResult):
                yield from result.leaves()
            else:
                yield result

    def ready(self) -> bool:
        """Return whether all jobs have finished."""
        return states.READY_STATES.issuperset(self._states())

    def successful(self) -> bool:
        """Return whether all jobs have completed."""
        return {states.SUCCESS}.issuperset(self._states())

    def failed(self) -> bool:
        """Return whether any job has failed."""
        return states.FAILURE in self._states()

    def waiting(self) -> bool:
        """Return whether any job has not finished."""
        return not self.ready()

    def completed_count(self) -> int:
        """Return how many jobs have completed."""
        return self._states().count(states.SUCCESS)

    def revoke(self, *_: Any, terminate: bool = False, **__: Any) -> None:
        """Cancel the jobs that wait. With `terminate`, also request those that run to stop."""
        for result in self.results:
            result.revoke(terminate=terminate)

    def forget(self) -> None:
        """Delete the jobs that have finished, with their results."""
        for result in self.results:
            result.forget()

    def __getattr__(self, name: str) -> Any:
        if name in NOT_COVERED:
            raise NotCovered(f"GroupResult.{name}", NOT_COVERED[name])
        raise AttributeError(f"'GroupResult' object has no attribute {name!r}")

    def __len__(self) -> int:
        return len(self.results)

    def __iter__(self) -> Iterator[AsyncResult | GroupResult]:
        return iter(self.results)

    def __getitem__(self, index: int) -> AsyncResult | GroupResult:
        return self.results[index]

    def __repr__(self) -> str:
        return f"<GroupResult: {self.id} [{', '.join(map(str, self.results))}]>"
