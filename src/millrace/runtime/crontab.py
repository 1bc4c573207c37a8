"""What an app offers for schedules: `cron` to declare them, `schedules` and `schedule` to look at and pause them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, Unpack, overload

from millrace.domain.cron import Missed
from millrace.domain.errors import InvalidInput
from millrace.domain.hints import meant
from millrace.domain.schedule import Plan, Schedule
from millrace.runtime.duration import Duration
from millrace.runtime.task import Task
from millrace.store.protocol import Store

if TYPE_CHECKING:
    from millrace.runtime.schedule import Scheduler
    from millrace.runtime.schedules import ScheduleControl

T = TypeVar("T", bound=Task[..., Any])


class CronKeywords(TypedDict, total=False):
    """What `app.cron(…)` takes besides the times and the task. `args` and `kwargs` are the payload of every job."""

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
        """Enqueue a task by the calendar, or at an interval; exactly once per tick, however many workers there are.

        app.cron("0 3 * * *", cleanup, tz="Europe/Berlin", kwargs={"days": 7})
        app.cron(ping, every="30s")

        Also as a decorator, above `@app.task`. Times of a tick that nobody was there for: `missed` is "skip",
        "once" (the default) or "all"; `grace` says how late is still on time (one minute). Priority, queue, retries
        and the rest are those of the task, or of `task.options(…)`.
        """
        rest = list(times_and_task)
        task = rest.pop() if rest and not isinstance(rest[-1], str) else None
        expression = rest.pop(0) if rest else None
        if rest:
            raise InvalidInput(f"app.cron takes a cron expression and a task, in this order; not {times_and_task!r}")
        for name in options:
            if name not in _KNOWN:
                raise InvalidInput(f"app.cron has no option {name!r}. {meant(name, _KNOWN)}")
        if task is None:
            return lambda task: self._schedule(task, expression, options)
        return self._schedule(task, expression, options)

    def _schedule(self, task: T, expression: str | None, options: Mapping[str, Any]) -> T:
        from millrace.runtime.plan import make_plan

        if not isinstance(task, Task):
            raise InvalidInput(f"app.cron schedules a task, not {task!r}. Make one of it first: put @app.task below")
        plan = make_plan(task, expression, **options)
        name = plan.schedule.name
        if name in self.plans:
            raise InvalidInput(f"a schedule named {name!r} is declared already. Give this one another name=…")
        self.plans[name] = plan
        return task

    async def schedules(self) -> list[Schedule]:
        """Every schedule in the store, by name, whichever process declared it: times, next and last tick, paused."""
        from millrace.runtime.schedules import list_schedules

        return await list_schedules(await self.connected())

    def schedule(self, name: str) -> ScheduleControl:
        """Control of one schedule: status, pause, resume, forget."""
        from millrace.runtime.schedules import ScheduleControl

        return ScheduleControl(name, self.connected, self.plans)

    def scheduler(self) -> Scheduler:
        """A scheduler alone, for a process without a worker: `await app.scheduler().run()`. Workers have one each."""
        from millrace.runtime.schedule import Scheduler

        return Scheduler(self.plans, self.prepared)  # a tick into a pool that the store does not know has no lane


_KNOWN = {*CronKeywords.__annotations__, "every"}
