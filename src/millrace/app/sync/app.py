"""`app.sync`: the blocking API, for programs without an event loop.

It can be used from any number of threads. An enqueue calls the store directly if the store works without an event loop.
All other calls run on one background loop, shared by all apps of the process.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Self, TypeVar, Unpack

from millrace.app.connection import join
from millrace.app.flows.handle import SyncFlows
from millrace.app.job_handle import SyncJobHandle
from millrace.app.payloads.inputs import keeping_inputs
from millrace.app.queue import LimitKeywords
from millrace.app.sync.background import background, refuse_running_loop
from millrace.app.sync.views import SyncJobs, SyncQueue, iterate
from millrace.app.task import CHUNK, Item, Task, noting_enqueued
from millrace.domain.event import Event
from millrace.domain.job import Spec
from millrace.domain.request import Enqueued
from millrace.domain.rules.check import Checked
from millrace.domain.settings import Limits
from millrace.store.protocol import Blocking, Direct, Store

if TYPE_CHECKING:
    from millrace.app.app import App
    from millrace.app.sync.schedules import SyncSchedules

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class Sync:
    """The blocking API of an app, returned by `app.sync`.

    The store is closed at the end of `with app.sync:`, or at the end of the program.
    """

    def __init__(self, app: App) -> None:
        self.app = app
        self._store: Store | None = None  # the open store for the background loop
        self._loop: object = None  # that loop; after a fork or a restart there is a new one
        self._direct: Direct | None = None
        self._blocking: Blocking | None = None
        self.jobs = SyncJobs(app.jobs, self.run)
        self.flows = SyncFlows(app.flows)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the background loop and return its result: `app.sync.run(pool.status())`.

        Use this for methods that have no blocking version.
        """
        return background.run(coroutine)

    def enqueue(self, specs: Iterable[Spec], *, within: object = None) -> list[SyncJobHandle[Any]]:
        """Enqueue jobs of any tasks in one step, all or nothing, and return one handle per spec.

        app.sync.enqueue([resize.spec(…), notify.spec(…)])
        """
        return [SyncJobHandle(self.app, answer.id, answer) for answer in self.store_specs(specs, within)]

    def store_specs(self, specs: Iterable[Spec], within: object) -> list[Enqueued]:
        specs = specs if isinstance(specs, Checked) else keeping_inputs(list(specs))
        pools = self.app.pools
        for name in pools.keys() & {spec.queue for spec in specs} if pools else ():
            self.run(pools[name].declare(within))
        refuse_running_loop()
        tracing = self.app.tracing
        if tracing is None:
            return self._put_in_now(specs, within)
        with tracing.sending(specs) as carrying:
            return self._put_in_now(carrying, within)

    def _put_in_now(self, specs: list[Spec], within: object) -> list[Enqueued]:
        if within is not None:
            return join(self.app.store, within).enqueue_now(specs)
        store = self.app.store
        if self._store is not store or self._loop is not background.loop:
            self._open()
        if self._direct is not None:
            return self._direct.enqueue_now(specs)
        if self._blocking is not None and (answers := self._blocking.enqueue_blocking(specs)) is not None:
            return answers
        return self.run(self._put_in(specs))

    async def _put_in(self, specs: list[Spec]) -> list[Enqueued]:
        return await (await self.app.connected()).enqueue(specs)

    def task(self, task: Task[P, R]) -> SyncTask[P, R]:
        return SyncTask(task, self)

    def queue(self, name: str) -> SyncQueue:
        """Return a handle for one queue, which can pause and drain it, change its settings and read its counts."""
        return SyncQueue(self.app.queue(name), self.run)

    @property
    def schedules(self) -> SyncSchedules:
        """The schedules in the store, of all processes: list, put, update, pause, resume and remove them."""
        from millrace.app.sync.schedules import SyncSchedules

        return SyncSchedules(self.app.schedules, self.run)

    def limit(self, task: str | Task[..., Any], **limits: Unpack[LimitKeywords]) -> Limits:
        """Set limits on one task, over all workers and queues. Return the limits that are now in effect."""
        return self.run(self.app.limit(task, **limits))

    def events(self, cursor: str | None = None, *, follow: bool = True, page: int = 500) -> Iterator[Event]:
        """Iterate over the store's events after `cursor`. With `follow`, wait for new events and never end."""
        return iterate(self.run, aiter(self.app.events(cursor, follow=follow, page=page)), 1 if follow else page)

    def close(self) -> None:
        self._close_store()
        self._store = self._direct = self._blocking = None
        background.before_exit(id(self), None)

    def __enter__(self) -> Self:
        self._open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open(self) -> None:
        """Open the store on the background loop. It stays open there if another loop closes the app."""
        self.run(self.app.connected())
        store = self.app.store
        self._store, self._loop = store, background.loop
        self._direct = store if isinstance(store, Direct) else None
        self._blocking = store if isinstance(store, Blocking) else None
        background.before_exit(id(self), self._close_at_exit)

    def _close_at_exit(self) -> None:
        if self._direct is not None:  # at exit, event loops can no longer start the threads that close it
            self._direct.close_now()
        else:
            self._close_store()

    def _close_store(self) -> None:
        if self._blocking is not None:
            self._blocking.close_blocking()
        self.run(self.app.close())


class SyncTask(Generic[P, R]):
    """The blocking API of a task, returned by `task.sync`. Any thread without a running event loop can use it."""

    def __init__(self, task: Task[P, R], sync: Sync) -> None:
        self._task = task
        self._sync = sync

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> SyncJobHandle[R]:
        """Enqueue one job and return its handle. Once this returns, the job is stored."""
        task, app = self._due(), self._sync.app
        [answer] = self._sync.store_specs(task.checked_specs(*args, **kwargs), task.connection)
        return SyncJobHandle(app, answer.id, answer, task)

    def enqueue_many(self, items: Iterable[Item], *, chunk: int | None = None) -> list[SyncJobHandle[R]]:
        """Enqueue many jobs in chunks of `chunk` jobs, each all or nothing. Return one handle per item.

        `items` is iterated on the calling thread.
        """
        task = self._due()
        answers: list[Enqueued] = []
        with noting_enqueued(answers):
            for specs in task.chunks(items, CHUNK if chunk is None else chunk):
                answers += self._sync.store_specs(specs, task.connection)
        app = self._sync.app
        return [SyncJobHandle(app, answer.id, answer, task) for answer in answers]

    def _due(self) -> Task[P, R]:
        return self._task if self._task.at is None else self._sync.run(self._task.due())

    def call(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Enqueue one job, wait until it has finished, and return its result.

        The wait is limited to 30 s. `options(wait=…)` sets another limit; None means no limit.

        Raises the same exceptions as `Task.call`.
        """
        return self._sync.run(self._task.call(*args, **kwargs))
