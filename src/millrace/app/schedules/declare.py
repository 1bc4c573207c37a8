"""The methods of an app for schedules: `cron` declares one in code; `schedules` has those in the store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, Unpack, overload

from millrace.app.duration import Duration
from millrace.app.task import Task
from millrace.domain.errors import InvalidInput, did_you_mean
from millrace.domain.rules.cron import Missed
from millrace.domain.schedule import Plan
from millrace.store.protocol import Store

if TYPE_CHECKING:
    from millrace.app.schedules.collection import Schedules
    from millrace.worker.scheduler import Scheduler

T = TypeVar("T", bound=Task[..., Any])


class CronKeywords(TypedDict, total=False):
    """The keywords of `app.cron(…)` besides times and task. `args` and `kwargs` are the arguments of every job."""

    name: str
    tz: str
    missed: Missed
    grace: Duration
    args: Iterable[Any]
    kwargs: Mapping[str, Any]


class Crontab:
    plans: dict[str, Plan]

    async def connected(self) -> Store:
        raise NotImplementedError

    async def prepared(self) -> Store:
        raise NotImplementedError

    @overload
    def cron(self, expression: str, task: T, /, **options: Unpack[CronKeywords]) -> T: ...
    @overload
    def cron(self, task: T, /, *, every: Duration, **options: Unpack[CronKeywords]) -> T: ...
    @overload
    def cron(self, expression: str, /, **options: Unpack[CronKeywords]) -> Callable[[T], T]: ...
    @overload
    def cron(self, /, *, every: Duration, **options: Unpack[CronKeywords]) -> Callable[[T], T]: ...
    def cron(self, *times_and_task: Any, **options: Any) -> Any:
        """Declare a schedule and return the task. The task is enqueued once per tick, whatever the number of workers.

        app.cron("0 3 * * *", cleanup, tz="Europe/Berlin", kwargs={"days": 7})
        app.cron(ping, every="30s")

        `app.cron("0 3 * * *")` can also be used as a decorator, above `@app.task`. If no scheduler ran for a while,
        `missed` selects which of the missed ticks are enqueued: none ("skip"), the latest one ("once", the default) or
        the latest 1,000 ("all"). A tick that is at most `grace` late (default one minute) does not count as missed.
        Jobs have the options of the task, or of `task.options(…)`.
        """
        rest = list(times_and_task)
        task = rest.pop() if rest and not isinstance(rest[-1], str) else None
        expression = rest.pop(0) if rest else None
        if rest:
            raise InvalidInput(f"app.cron takes a cron expression and a task, in this order; not {times_and_task!r}")
        for name in options:
            if name not in _KNOWN:
                raise InvalidInput(f"app.cron has no option {name!r}. {did_you_mean(name, _KNOWN)}")
        if task is None:
            return lambda task: self._schedule(task, expression, options)
        return self._schedule(task, expression, options)

    def _schedule(self, task: T, expression: str | None, options: Mapping[str, Any]) -> T:
        from millrace.app.schedules.plan import make_plan

        if not isinstance(task, Task):
            raise InvalidInput(f"app.cron schedules a task, not {task!r}. Put @app.task below @app.cron")
        plan = make_plan(task, expression, **options)
        name = plan.schedule.name
        if name in self.plans:
            raise InvalidInput(f"a schedule named {name!r} is already declared. Give this one another name=…")
        self.plans[name] = plan
        return task

    @property
    def schedules(self) -> Schedules:
        """The schedules in the store, of all processes: list, put, update, pause, resume and remove them."""
        from millrace.app.schedules.collection import Schedules

        return Schedules(self.connected, self.plans)

    def scheduler(self) -> Scheduler:
        """Return a scheduler for a process without a worker: `await app.scheduler().run()`.

        Workers run one themselves.
        """
        from millrace.worker.scheduler import Scheduler

        return Scheduler(self.plans, self.prepared)  # `prepared`: pools must be in the store before a tick enqueues


_KNOWN = {*CronKeywords.__annotations__, "every"}
