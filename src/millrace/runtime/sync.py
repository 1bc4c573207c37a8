"""The app for programs without an event loop: the same calls, which block and answer.

Safe from any number of threads. Enqueues go straight to the store where it can answer without an event loop; all
else runs on one loop in the background, shared by all apps of the process.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Self, TypeVar, Unpack

from millrace.domain.event import Event
from millrace.domain.job import Spec
from millrace.domain.request import Enqueued
from millrace.domain.settings import Limits
from millrace.runtime.background import background, refuse_running_loop
from millrace.runtime.joining import join
from millrace.runtime.queue import LimitKeywords
from millrace.runtime.sync_views import SyncJobs, SyncQueue, iterate
from millrace.runtime.task import CHUNK, Task, saying_how_many
from millrace.store.protocol import Direct, Store

if TYPE_CHECKING:
    from millrace.runtime.app import App

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class Sync:
    """Made by the app: `app.sync`. `with app.sync:` closes the store again; so does the end of the program."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._store: Store | None = None  # once it is open for the loop in the background …
        self._loop: object = None  # … which may be another one: after a fork, or a new start
        self._direct: Direct | None = None
        self.jobs = SyncJobs(app.jobs, self.run)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Whatever has no twin here: `app.sync.run(pool.status())`."""
        return background.run(coroutine)

    def enqueue(self, specs: Iterable[Spec], *, within: object = None) -> list[Enqueued]:
        """Put jobs of any tasks in as one step: `app.sync.enqueue([resize.spec(…), notify.spec(…)])`."""
        specs = list(specs)
        for name in self._app.pools.keys() & {spec.queue for spec in specs}:
            self.run(self._app.pools[name].declare(within))
        return self.put_in(specs, within)

    def put_in(self, specs: list[Spec], within: object = None) -> list[Enqueued]:
        refuse_running_loop()
        tracing = self._app.tracing
        if tracing is None:
            return self._put_in_now(specs, within)
        with tracing.sending(specs) as carrying:
            return self._put_in_now(carrying, within)

    def _put_in_now(self, specs: list[Spec], within: object) -> list[Enqueued]:
        if within is not None:
            return join(self._app.store, within).enqueue_now(specs)
        store = self._app.store
        if self._store is not store or self._loop is not background.loop:
            self._open()
        if self._direct is not None:
            return self._direct.enqueue_now(specs)
        return self.run(self._put_in(specs))

    async def _put_in(self, specs: list[Spec]) -> list[Enqueued]:
        return await (await self._app.connected()).enqueue(specs)

    def task(self, task: Task[P, R]) -> SyncTask[P, R]:
        return SyncTask(task, self)

    def queue(self, name: str) -> SyncQueue:
        """Control of one queue: pause, limits, settings, drain, counts."""
        return SyncQueue(self._app.queue(name), self.run)

    def limit(self, task: str | Task[..., Any], **limits: Unpack[LimitKeywords]) -> Limits:
        """Bound the claims of one task over all workers and queues; answers its limits as they are now."""
        return self.run(self._app.limit(task, **limits))

    def events(self, cursor: str | None = None, *, follow: bool = True, page: int = 500) -> Iterator[Event]:
        """What happens in the store, from `cursor` on; with `follow`, it waits for more for ever."""
        return iterate(self.run, aiter(self._app.events(cursor, follow=follow, page=page)), 1 if follow else page)

    def close(self) -> None:
        self.run(self._app.close())
        self._store = self._direct = None
        background.before_exit(id(self), None)

    def __enter__(self) -> Self:
        self._open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open(self) -> None:
        """Open for the loop in the background, so that others who close the app leave it open for us."""
        self.run(self._app.connected())
        store = self._app.store
        self._store, self._loop = store, background.loop
        self._direct = store if isinstance(store, Direct) else None
        background.before_exit(id(self), self._close_at_exit)

    def _close_at_exit(self) -> None:
        if self._direct is not None:  # loops have no threads to close it with any more
            self._direct.close_now()
        else:
            self.run(self._app.close())


class SyncTask(Generic[P, R]):
    """Made by `task.sync`: enqueue and call, from any thread without an event loop."""

    def __init__(self, task: Task[P, R], sync: Sync) -> None:
        self._task = task
        self._sync = sync

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Enqueued:
        """Put one job in. Once this returns, the job is kept, at the durability that the store states."""
        task = self._task
        [answer] = self._sync.enqueue([task.spec(*args, **kwargs)], within=task.connection)
        return answer

    def enqueue_many(
        self, items: Iterable[Mapping[str, Any] | tuple[Any, ...]], *, chunk: int | None = None
    ) -> list[Enqueued]:
        """Put many jobs in, all or nothing for each `chunk`; the items are taken on the calling thread."""
        task = self._task
        answers: list[Enqueued] = []
        with saying_how_many(answers):
            for specs in task.chunks(items, CHUNK if chunk is None else chunk):
                answers += self._sync.enqueue(specs, within=task.connection)
        return answers

    def call(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Enqueue and wait for the result: 30 s, or `options(wait=…)`; None waits for ever."""
        return self._sync.run(self._task.call(*args, **kwargs))
