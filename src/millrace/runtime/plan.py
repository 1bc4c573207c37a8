"""A schedule as an app declares it, read and checked: what is wrong with it shows now, and not at night."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, get_args

import msgspec

from millrace.domain.check import check_name, check_spec
from millrace.domain.cron import GRACE, LEAST_INTERVAL, Missed, tick_job
from millrace.domain.errors import InvalidInput
from millrace.domain.job import Spec
from millrace.domain.schedule import Plan, Schedule
from millrace.runtime.duration import Duration, milliseconds
from millrace.runtime.timetable import EVERY, read_interval, timetable, zone

if TYPE_CHECKING:
    from millrace.runtime.task import Task


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
    name = task.name if name is None else name
    check_name("schedule", name)
    if missed not in get_args(Missed):
        raise InvalidInput(f"schedule {name!r}: missed is 'skip', 'once' or 'all', not {missed!r}")
    text = _times(name, expression, every)
    zone(tz)
    template = _template(name, task, args, kwargs or {})
    late = milliseconds("grace", grace)
    if missed == "skip" and late < LEAST_INTERVAL:
        raise InvalidInput(
            f"schedule {name!r}: grace must be at least one second with missed='skip', not {grace!r}. No tick is "
            "carried out to the millisecond, so nearly all would be left out"
        )
    digest = hashlib.sha256(msgspec.msgpack.encode((text, tz, missed, late, template))).hexdigest()[:32]
    record = Schedule(name, text, tz, task.name, template.queue, missed, late, digest, mark=0)
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


def _template(name: str, task: Task[..., Any], args: Iterable[Any], kwargs: Mapping[str, Any]) -> Spec:
    """The job of a tick, but for its id."""
    if task.named:
        raise InvalidInput(f"schedule {name!r}: its jobs get their ids from the ticks; leave out options(id=…)")
    if task.connection is not None:
        raise InvalidInput(f"schedule {name!r}: its ticks are part of no transaction; leave out options(within=…)")
    template = task.bound({"id": "tick", "reuse": False}).spec(*args, **kwargs)
    if template.after:
        raise InvalidInput(f"schedule {name!r}: its jobs cannot wait for one other job; leave out options(after=…)")
    if template.key is not None and template.on_hit == "raise":
        raise InvalidInput(f"schedule {name!r}: nobody would see on_hit='raise'; with 'keep' such a tick is left out")
    template = msgspec.structs.replace(template, token="")
    check_spec(tick_job(template, name, 0))  # what a store would refuse at every tick
    return template
