"""The blocking version of `app.schedules`, for programs without an event loop."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Unpack, overload

from millrace.app.schedules.collection import CHUNK, Schedules
from millrace.app.schedules.plan import ScheduleDefinition, TimesKeywords
from millrace.app.sync.views import Runner, iterate
from millrace.domain.job import Spec
from millrace.domain.schedule import Schedule


class SyncSchedules:
    """The methods of `app.sync.schedules`, the blocking version of `app.schedules`."""

    def __init__(self, schedules: Schedules, run: Runner) -> None:
        self._schedules = schedules
        self._run = run

    def put(self, name: str, spec: Spec, **times: Unpack[TimesKeywords]) -> Schedule:
        """Store a schedule whose ticks enqueue `spec`, or change the schedule with this name. Return it.

        Any worker of the store runs the schedule. Putting the same definition again changes nothing.
        """
        return self._run(self._schedules.put(name, spec, **times))

    def put_many(self, definitions: Iterable[ScheduleDefinition]) -> list[Schedule]:
        """Store many schedules, in chunks of 500 with two calls of the store each. Return them in the same order.

        All definitions are checked before the first one is stored.
        """
        return self._run(self._schedules.put_many(definitions))

    def update(self, name: str, *, spec: Spec | None = None, **times: Unpack[TimesKeywords]) -> Schedule:
        """Change parts of a schedule that was stored with `put`: what is not passed stays. Return the schedule."""
        return self._run(self._schedules.update(name, spec=spec, **times))

    def get(self, name: str) -> Schedule | None:
        """Return the schedule with this name and its next tick; None if it is not in the store."""
        return self._run(self._schedules.get(name))

    def page(self, *, after: str = "", limit: int = 100) -> list[Schedule]:
        """Return up to `limit` schedules of all processes, sorted by name, with their next ticks.

        For the next page, pass the last name of this page as `after`.
        """
        return self._run(self._schedules.page(after=after, limit=limit))

    def __iter__(self) -> Iterator[Schedule]:
        """Iterate over the schedules of all processes, sorted by name: `for schedule in app.sync.schedules`."""
        return iterate(self._run, aiter(self._schedules), CHUNK)

    @overload
    def pause(self, names: str) -> Schedule: ...  # type: ignore[overload-overlap]
    @overload
    def pause(self, names: Iterable[str]) -> list[Schedule]: ...
    def pause(self, names: str | Iterable[str]) -> Schedule | list[Schedule]:
        """Stop the ticks of one schedule or of many, durably and for all workers. Return the schedules.

        Jobs that are already enqueued still run. Raises InvalidInput if a schedule is not in the store.
        """
        return self._run(self._schedules.pause(names))

    @overload
    def resume(self, names: str) -> Schedule: ...  # type: ignore[overload-overlap]
    @overload
    def resume(self, names: Iterable[str]) -> list[Schedule]: ...
    def resume(self, names: str | Iterable[str]) -> Schedule | list[Schedule]:
        """Continue one schedule or many from now. Return the schedules.

        Ticks during the pause are skipped and do not count as missed.
        """
        return self._run(self._schedules.resume(names))

    def remove(self, names: str | Iterable[str]) -> int:
        """Remove schedules from the store. Return how many were there. Jobs that are already enqueued still run.

        A running worker whose app still declares a schedule in code stores it again.
        """
        return self._run(self._schedules.remove(names))

    def __repr__(self) -> str:
        return "<SyncSchedules>"
