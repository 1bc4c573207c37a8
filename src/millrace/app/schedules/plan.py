"""Schedule plans: definitions of schedules, parsed and validated at once, so that no tick fails later."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypedDict, get_args

import msgspec

from millrace.app.duration import Duration, milliseconds
from millrace.app.schedules.timetable import EVERY, read_interval, timetable, zone
from millrace.domain.errors import InvalidInput
from millrace.domain.job import Spec
from millrace.domain.rules.check import check_name, check_spec
from millrace.domain.rules.cron import GRACE, LEAST_INTERVAL, Missed, tick_job
from millrace.domain.schedule import Plan, Schedule

if TYPE_CHECKING:
    from millrace.app.task import Task


class TimesKeywords(TypedDict, total=False):
    """The keywords of `app.schedules.put(…)`: a cron expression or an interval, and how ticks are treated."""

    cron: str | None
    every: Duration | None
    tz: str
    missed: Missed
    grace: Duration


class ScheduleDefinition(msgspec.Struct, frozen=True):
    """A schedule for `app.schedules.put_many`: its name, the spec of its jobs, and either `cron` or `every`.

    ScheduleDefinition("report.acme", report.spec(customer="acme"), cron="0 8 * * *", tz="Europe/Berlin")
    """

    name: str
    spec: Spec
    cron: str | None = None
    every: Duration | None = None
    tz: str = "UTC"
    missed: Missed = "once"
    grace: Duration = GRACE / 1000


def make_plan(
    task: Task[..., Any],
    expression: str | None,
    *,
    every: Duration | None = None,
    name: str | None = None,
    tz: str = "UTC",
    missed: Missed = "once",
    grace: Duration = GRACE / 1000,
    args: Iterable[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
) -> Plan:
    """Return the plan of a schedule that an app declares in code. Raises InvalidInput for an invalid definition."""
    name = task.name if name is None else name
    text, late = _read_times(name, expression, every, tz, missed, grace)
    if task.named:
        raise InvalidInput(f"schedule {name!r}: its jobs get their ids from the ticks; remove options(id=…)")
    if task.connection is not None:
        raise InvalidInput(f"schedule {name!r}: a tick cannot be in your transaction; remove options(within=…)")
    spec = task.bound({"id": "tick"}).spec(*args, **(kwargs or {}))
    return _plan(name, spec, text, tz, missed, late)


def stored_plan(definition: ScheduleDefinition) -> Plan:
    """Return the plan of a schedule that the store runs. Raises InvalidInput for an invalid definition."""
    name, spec, tz, missed = definition.name, definition.spec, definition.tz, definition.missed
    text, late = _read_times(name, definition.cron, definition.every, tz, missed, definition.grace)
    if not isinstance(spec, Spec):
        raise InvalidInput(
            f"schedule {name!r} takes the spec of its jobs, not {spec!r}. Pass task.spec(…) with the arguments of the "
            "task"
        )
    plan = _plan(name, spec, text, tz, missed, late)
    return msgspec.structs.replace(plan, schedule=msgspec.structs.replace(plan.schedule, template=plan.template))


def definition_of(schedule: Schedule) -> ScheduleDefinition:
    """Return the definition of a stored schedule. Raises InvalidInput for a schedule that is declared in code."""
    if schedule.template is None:
        raise InvalidInput(f"schedule {schedule.name!r} is declared in code with app.cron(…); change it there")
    text = schedule.expression
    every = text.removeprefix(EVERY) if text.startswith(EVERY) else None
    return ScheduleDefinition(
        schedule.name,
        schedule.template,
        text if every is None else None,
        every,
        schedule.tz,
        schedule.missed,
        schedule.grace / 1000,
    )


def _read_times(
    name: str, expression: object, every: Duration | None, tz: str, missed: str, grace: Duration
) -> tuple[str, int]:
    """Return the times of a schedule as they are stored, and `grace` in milliseconds. Raises InvalidInput."""
    check_name("schedule", name)
    if missed not in get_args(Missed):
        raise InvalidInput(f"schedule {name!r}: missed must be 'skip', 'once' or 'all', not {missed!r}")
    text = _times(name, expression, every)
    zone(tz)
    late = milliseconds("grace", grace)
    if missed == "skip" and late < LEAST_INTERVAL:
        raise InvalidInput(
            f"schedule {name!r}: grace must be at least one second with missed='skip', not {grace!r}. Ticks are "
            "always some milliseconds late, so nearly all would be skipped"
        )
    return text, late


def _plan(name: str, spec: Spec, text: str, tz: str, missed: Missed, late: int) -> Plan:
    template = _template(name, spec)
    digest = hashlib.sha256(msgspec.msgpack.encode((text, tz, missed, late, template))).hexdigest()[:32]
    record = Schedule(name, text, tz, template.task, template.queue, missed, late, digest, mark=0)
    return Plan(record, template, timetable(text, tz))


def _times(name: str, expression: object, every: Duration | None) -> str:
    if (expression is None) == (every is None):
        raise InvalidInput(f"schedule {name!r} takes either a cron expression or every=…, and exactly one of them")
    if every is not None:
        return read_interval(every)
    if not isinstance(expression, str):
        raise InvalidInput(f"schedule {name!r}: a cron expression is text such as '0 3 * * *', not {expression!r}")
    text = " ".join(expression.split())
    return read_interval(text.removeprefix(EVERY)) if text.startswith(EVERY) else text


def _template(name: str, spec: Spec) -> Spec:
    """Return the spec from which the job of each tick is made. Raises InvalidInput for unsuitable options."""
    template = msgspec.structs.replace(spec, id="tick", token="", reuse=False)
    if template.after:
        raise InvalidInput(f"schedule {name!r}: its jobs cannot wait for one other job; remove options(after=…)")
    if template.key is not None and template.on_hit == "raise":
        raise InvalidInput(f"schedule {name!r}: on_hit='raise' has no caller to raise to; use 'keep' to skip the tick")
    check_spec(tick_job(template, name, 0))  # raises now what a store would raise at every tick
    return template
