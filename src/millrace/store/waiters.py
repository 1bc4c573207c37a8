"""Waiting within one process, across threads and event loops: which waiters are woken when jobs are added or end.

A sleeper is an idle worker. Each added job wakes one sleeper that can run it; an enqueue of several jobs wakes as many
sleepers. A sleeper waits for places. The place (queue, task) stands for a job of this task in this queue. (queue, None)
and (None, task) stand for room under a limit of the queue or the task. A sleeper registers before it checks for jobs,
so that it misses no wake-up.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Iterable, Iterator, Mapping

from millrace.domain.tables import CANCELS, Place

Tasks = frozenset[str] | None  # None: every task


class Waiter:
    """One wait on an event loop. It can be woken once, from any thread."""

    __slots__ = ("_future", "_loop", "places")

    def __init__(self, places: Iterable[str]) -> None:
        self.places = tuple(places)
        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[None] = self._loop.create_future()

    def wake(self) -> bool:
        """Wake the waiter. Return False if its event loop is not running, because a waiter without a running loop may
        never continue.
        """
        try:
            runs = self._loop.is_running()
            self._loop.call_soon_threadsafe(self._set)
        except RuntimeError:  # the loop is closed
            return False
        return runs

    def _set(self) -> None:
        if not self._future.done():
            self._future.set_result(None)

    async def sleep(self, timeout: float) -> None:
        await asyncio.wait([self._future], timeout=max(0.0, timeout))

    @property
    def woken(self) -> bool:
        return self._future.done()


class Waiters:
    """The waiters for the end of jobs, by job id."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._places: dict[str, dict[Waiter, None]] = {}

    def register(self, places: Iterable[str]) -> Waiter:
        waiter = Waiter(places)
        with self._lock:
            for place in waiter.places:
                self._places.setdefault(place, {})[waiter] = None
        return waiter

    def forget(self, waiter: Waiter) -> None:
        with self._lock:
            self._drop(waiter)

    def wake(self, places: Iterable[str]) -> None:
        """Wake all waiters that are registered for these job ids."""
        if not self._places:
            return
        with self._lock:
            taken = [waiter for place in places for waiter in self._places.get(place, ())]
            for waiter in taken:
                self._drop(waiter)
        for waiter in taken:
            waiter.wake()

    def wake_all(self) -> None:
        self.wake(list(self._places))

    def _drop(self, waiter: Waiter) -> None:
        for place in waiter.places:
            waiting = self._places.get(place)
            if waiting is not None:
                waiting.pop(waiter, None)
                if not waiting:
                    del self._places[place]

    def __len__(self) -> int:
        return sum(map(len, self._places.values()))


class Sleeper(Waiter):
    """An idle worker. It waits for jobs of its tasks in its queues, and for room under limits that block such jobs.

    `held_by` is the set of these limits. It is None until the limits are known; until then, any limit may block.
    """

    __slots__ = ("held_by", "hint", "number", "queues", "tasks")

    def __init__(self, queues: Iterable[str], tasks: Tasks, number: int) -> None:
        super().__init__(())
        self.queues = tuple(dict.fromkeys(queues))
        self.tasks = tasks
        self.number = number
        self.held_by: frozenset[Place] | None = None
        self.hint: Place | None = None  # the place that it was woken for

    def may_wait_for(self, place: Place) -> bool:
        queue, task = place
        return (queue is None or queue in self.queues) and (task is None or self.tasks is None or task in self.tasks)


class Sleepers:
    """All sleepers, oldest first, indexed by queue and tasks, and by the limits that they wait for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._all: dict[Sleeper, None] = {}
        self._queues: dict[str, dict[Tasks, dict[Sleeper, None]]] = {}
        self._held: dict[Place, dict[Sleeper, None]] = {}
        self._looking: dict[Sleeper, None] = {}  # registered, but their limits are not known yet

    def register(self, queues: Iterable[str], tasks: Tasks) -> Sleeper:
        sleeper = Sleeper(queues, tasks, next(self._numbers))
        with self._lock:
            self._all[sleeper] = self._looking[sleeper] = None
            for queue in sleeper.queues:
                self._queues.setdefault(queue, {}).setdefault(tasks, {})[sleeper] = None
        return sleeper

    def looked(self, sleeper: Sleeper, held_by: frozenset[Place]) -> None:
        """Record the limits (`held_by`) that currently block due jobs for this sleeper."""
        with self._lock:
            if sleeper in self._all:
                self._looking.pop(sleeper, None)
                self._drop_held(sleeper)
                sleeper.held_by = held_by
                for place in held_by:
                    self._held.setdefault(place, {})[sleeper] = None

    def forget(self, sleeper: Sleeper) -> None:
        with self._lock:
            self._drop(sleeper)

    async def cancelled(self, worker: str, timeout: float) -> bool:
        """Return True when a job of this worker may have been cancelled, or False after `timeout` seconds."""
        sleeper = self.register((CANCELS,), frozenset({worker}))
        self.looked(sleeper, frozenset())
        try:
            await sleeper.sleep(timeout)
            return sleeper.woken
        finally:
            self.forget(sleeper)

    def wake(self, places: Mapping[Place, int]) -> dict[Place, int]:
        """Wake up to the given number of sleepers for each place. Return, by place, the number for which no sleeper was
        found.
        """
        if not self._all:
            return dict(places)
        left: dict[Place, int] = {}
        with self._lock:
            for place, count in places.items():
                missing = self._wake_at(place, count)
                if missing > 0:
                    left[place] = missing
        return left

    def _wake_at(self, place: Place, count: int) -> int:
        if None in place:  # room under a limit: sleepers whose limits are not known yet must check again
            for sleeper in [one for one in self._looking if one.may_wait_for(place)]:
                self._wake(sleeper, None)
        while count > 0:
            first = min(self._heads(place), key=lambda sleeper: sleeper.number, default=None)
            if first is None:
                break
            count -= self._wake(first, place)
        return count

    def _heads(self, place: Place) -> Iterator[Sleeper]:
        """Yield the candidates for this place: the oldest sleeper of each set of tasks that includes the task of the
        place.

        If the place stands for room under a limit, yield only the oldest sleeper that waits for this limit.
        """
        queue, task = place
        if queue is None or task is None:
            yield from itertools.islice(self._held.get(place, ()), 1)
        else:
            for tasks, waiting in self._queues.get(queue, {}).items():
                if tasks is None or task in tasks:
                    yield next(iter(waiting))

    def _wake(self, sleeper: Sleeper, hint: Place | None) -> bool:
        self._drop(sleeper)
        sleeper.hint = hint
        return sleeper.wake()

    def pass_on(self, sleeper: Sleeper) -> dict[Place, int]:
        """Pass the hint of a sleeper whose wait was cancelled on to another sleeper. Return the result of `wake`."""
        return {} if sleeper.hint is None else self.wake({sleeper.hint: 1})

    def wake_all(self) -> None:
        """Wake all sleepers, because wake-ups may have been missed."""
        with self._lock:
            for sleeper in list(self._all):
                self._wake(sleeper, None)

    def can_use(self, places: Iterable[Place]) -> int:
        """Return the number of sleepers that hints for these places could wake."""
        with self._lock:
            able = {sleeper for place in places for sleeper in self._able(place)}
        return len(able)

    def _able(self, place: Place) -> Iterator[Sleeper]:
        if None in place:
            yield from self._held.get(place, ())
            yield from (one for one in self._looking if one.may_wait_for(place))
        else:
            for tasks, waiting in self._queues.get(place[0] or "", {}).items():
                if tasks is None or place[1] in tasks:
                    yield from waiting

    def all(self) -> list[Sleeper]:
        with self._lock:
            return list(self._all)

    def _drop(self, sleeper: Sleeper) -> None:
        if sleeper not in self._all:
            return
        del self._all[sleeper]
        self._looking.pop(sleeper, None)
        self._drop_held(sleeper)
        for queue in sleeper.queues:
            kinds = self._queues[queue]
            waiting = kinds[sleeper.tasks]
            del waiting[sleeper]
            if not waiting:
                del kinds[sleeper.tasks]
                if not kinds:
                    del self._queues[queue]

    def _drop_held(self, sleeper: Sleeper) -> None:
        for place in sleeper.held_by or ():
            waiting = self._held[place]
            del waiting[sleeper]
            if not waiting:
                del self._held[place]

    def __len__(self) -> int:
        return len(self._all)
