"""Schedule plans: schedules as an app declares them, parsed and validated at start, so that no tick fails later."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, get_args

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
        raise InvalidInput(f"schedule {name!r}: missed must be 'skip', 'once' or 'all', not {missed!r}")
    text = _times(name, expression, every)
    zone(tz)
    template = _template(name, task, args, kwargs or {})
    late = milliseconds("grace", grace)
    if missed == "skip" and late < LEAST_INTERVAL:
        raise InvalidInput(
            f"schedule {name!r}: grace must be at least one second with missed='skip', not {grace!r}. Ticks are "
            "always some milliseconds late, so nearly all would be skipped"
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
    """Return the spec from which the job of each tick is made. Raises InvalidInput for unsuitable options."""
    if task.named:
        raise InvalidInput(f"schedule {name!r}: its jobs get their ids from the ticks; remove options(id=…)")
    if task.connection is not None:
        raise InvalidInput(f"schedule {name!r}: a tick cannot be in your transaction; remove options(within=…)")
    template = task.bound({"id": "tick", "reuse": False}).spec(*args, **kwargs)
    if template.after:
        raise InvalidInput(f"schedule {name!r}: its jobs cannot wait for one other job; remove options(after=…)")
    if template.key is not None and template.on_hit == "raise":
        raise InvalidInput(f"schedule {name!r}: on_hit='raise' has no caller to raise to; use 'keep' to skip the tick")
    template = msgspec.structs.replace(template, token="")
    check_spec(tick_job(template, name, 0))  # raises now what a store would raise at every tick
    return template
