"""Schedules: `crontab` and `schedule`, and how the entries of `beat_schedule` become schedules of Millrace."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import timedelta
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from millrace.contrib.celery.exceptions import NotCovered
from millrace.contrib.celery.options import job_options
from millrace.contrib.celery.signature import CelerySignature
from millrace.contrib.celery.values import plain
from millrace.domain.errors import InvalidInput, QueueError, did_you_mean

if TYPE_CHECKING:
    from millrace.contrib.celery.app import Celery

Field = int | str | Iterable[int | str]


class crontab:
    """A schedule by the clock: `crontab(hour=7, minute=30, day_of_week="mon-fri")`, in the time zone of the app."""

    def __init__(
        self,
        minute: Field = "*",
        hour: Field = "*",
        day_of_month: Field = "*",
        month_of_year: Field = "*",
        day_of_week: Field = "*",
        **more: Any,
    ) -> None:
        if more:
            raise NotCovered(f"crontab({min(more)}=…)", "Remove it")
        fields = [_field(value) for value in (minute, hour, day_of_month, month_of_year, day_of_week)]
        if fields[2] != "*" and fields[4] != "*":
            raise NotCovered(
                "crontab with both day_of_month and day_of_week",
                "Celery runs it if both match; cron expressions run it if either does. Give one of them, and check the "
                "other one in the task",
            )
        self.expression = " ".join(fields)

    def __repr__(self) -> str:
        return f"<crontab: {self.expression}>"


class schedule:
    """A schedule by an interval: `schedule(run_every=30)`, in seconds or as a timedelta."""

    def __init__(self, run_every: float | timedelta, **more: Any) -> None:
        if more.pop("relative", False) or more:
            raise NotCovered("schedule with more than run_every", "Remove the other arguments")
        self.run_every = run_every


def solar(*_: Any, **__: Any) -> Any:
    """Not covered: raises NotCovered."""
    raise NotCovered("solar", "Write a crontab, or enqueue the job with an eta")


def declare(app: Celery, name: str, entry: Mapping[str, Any]) -> None:
    """Declare an entry of `beat_schedule` on the Millrace app."""
    if entry.get("relative"):
        raise NotCovered(f"'relative' in beat_schedule[{name!r}]", "Write a crontab")
    try:
        _declare(app, name, entry)
    except (QueueError, TypeError) as error:
        raise InvalidInput(f"beat_schedule[{name!r}]: {error}") from error


def _declare(app: Celery, name: str, entry: Mapping[str, Any]) -> None:
    unknown = sorted(entry.keys() - _KEYS)
    if unknown:
        raise InvalidInput(f"there is no key {unknown[0]!r}. {did_you_mean(unknown[0], _KEYS)}")
    missing = sorted({"task", "schedule"} - entry.keys())
    if missing:
        raise InvalidInput(f"the key {missing[0]!r} is missing")
    task_name = str(getattr(entry["task"], "name", entry["task"]))
    task = app.tasks.get(task_name)
    if task is not None:
        task.check_arguments(entry.get("args") or (), entry.get("kwargs") or {})
    serializer = None if task is None else task.serializer or app.conf.task_serializer
    options = job_options(app, task_name, entry.get("options") or {}, serializer=serializer)
    registered = app.registered(task_name)
    registered = registered.options(**options) if options else registered
    given = {"args": plain(list(entry.get("args") or ())), "kwargs": plain(dict(entry.get("kwargs") or {}))}
    times = entry["schedule"]
    shared: Any = {"name": _schedule_name(name), "tz": app.conf.timezone or "UTC", "kwargs": given}
    if isinstance(times, crontab):
        app.millrace.cron(times.expression, registered, **shared)
    else:
        app.millrace.cron(registered, every=_interval(times), **shared)


_KEYS = frozenset({"args", "kwargs", "options", "relative", "schedule", "task"})


def entry_of(times: Any, signature: CelerySignature, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entry of `beat_schedule` that a call of `add_periodic_task` means."""
    return {
        "task": signature.name,
        "schedule": times,
        "args": signature.args,
        "kwargs": signature.kwargs,
        "options": {**signature.options, **options},
    }


def _interval(times: Any) -> float | timedelta:
    if isinstance(times, schedule):
        times = times.run_every
    if isinstance(times, bool) or not isinstance(times, int | float | timedelta):
        raise InvalidInput(
            f"a schedule is a number of seconds, a timedelta, or a crontab of millrace.contrib.celery; not {times!r}"
        )
    return times


def _schedule_name(name: str) -> str:
    """Return a name of a schedule: letters, digits, and . _ - only. A hash replaces what is lost of the name."""
    text = re.sub(r"[^A-Za-z0-9._-]+", "-", name)
    if text == name and len(name) <= 128:
        return name
    return f"{text[:119].strip('-')}-{sha256(name.encode()).hexdigest()[:8]}".strip("-")


def _field(value: Field) -> str:
    text = value if isinstance(value, str) else str(value) if isinstance(value, int) else ",".join(map(str, value))
    return re.sub(r"[a-z]+", lambda word: word[0][:3].upper(), text.replace(" ", "").lower())
