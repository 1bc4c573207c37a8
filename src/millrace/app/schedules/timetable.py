"""Parser of the times of a schedule: a cron expression in a time zone, or an interval."""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo
from functools import lru_cache
from typing import TYPE_CHECKING

from millrace.app.duration import Duration, milliseconds
from millrace.domain.errors import InvalidInput, MissingExtra
from millrace.domain.rules.cron import LEAST_INTERVAL, Calendar, Every, Timetable

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

NICKNAMES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_HOW = (
    "Write minute, hour, day of month, month and day of week, such as '*/5 * * * *' or '0 3 * * MON-FRI' "
    "(six fields: seconds first), or one of " + ", ".join(NICKNAMES)
)
_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1))
EVERY = "every "
_OF_THE_MACHINE = ("localtime", "posixrules")
_SOME_DAY = datetime(2000, 1, 1, tzinfo=UTC)  # any day: only the parsed fields are used


def read_interval(every: Duration) -> str:
    """Return an interval as text, as it is stored and shown: "every 1h30m". Raises InvalidInput if it is too short."""
    interval = milliseconds("every", every)
    if interval < LEAST_INTERVAL:
        raise InvalidInput(f"a schedule ticks at most once a second, not every {every!r}")
    text = ""
    for unit, size in _UNITS:
        if interval >= size:
            text += f"{interval // size}{unit}"
            interval %= size
    return EVERY + text


@lru_cache(1_024)
def timetable(expression: str, tz: str) -> Timetable:
    """Return the timetable of a stored expression, shared by all schedules with these times.

    Raises InvalidInput if it is invalid, and MissingExtra for a cron expression if cronsim is not installed.
    """
    if expression.startswith(EVERY):
        return Every(milliseconds("every", expression.removeprefix(EVERY)))
    return _calendar(expression, zone(tz))


@lru_cache(1_024)
def timetable_or_reason(expression: str, tz: str) -> Timetable | str:
    """Return the timetable of a stored expression, or why this process has none, without trying it again.

    For example, the expression is from a newer release, or cronsim or the time zone data is not installed here.
    """
    try:
        return timetable(expression, tz)
    except (InvalidInput, MissingExtra) as error:
        return str(error)


def zone(tz: object) -> ZoneInfo:
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

    if tz in _OF_THE_MACHINE or str(tz).startswith("right/"):  # the latter counts leap seconds, system clocks do not
        raise InvalidInput(
            f"time zone {tz!r} differs between machines, so their schedulers would compute different ticks. "
            "Pass a named zone, such as 'Europe/Berlin' or 'UTC'."
        )
    try:
        if isinstance(tz, str) and tz:
            return ZoneInfo(tz)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        pass
    known = available_timezones()
    if not known:
        raise InvalidInput(f"time zone {tz!r}: this machine has no time zone data. Run: pip install tzdata")
    import difflib

    close = difflib.get_close_matches(str(tz), known, n=1, cutoff=0.5)
    hint = f"Did you mean {close[0]!r}?" if close else "Use a name such as 'Europe/Berlin' or 'UTC'."
    raise InvalidInput(f"there is no time zone {tz!r}. {hint}")


def _calendar(expression: str, zone: tzinfo) -> Calendar:
    try:
        from cronsim import CronSim, CronSimError
    except ImportError:
        raise MissingExtra("cron expressions", "cron") from None
    text = NICKNAMES.get(expression.strip().lower(), expression)
    try:
        read = CronSim(text, _SOME_DAY)
    except CronSimError as error:
        raise InvalidInput(f"cron expression {expression!r}: {str(error).lower()}. {_HOW}") from None
    except Exception:  # its parser raises other errors for some invalid expressions
        raise InvalidInput(f"cron expression {expression[:100]!r} cannot be read. {_HOW}") from None
    minute, hour = read.parts[1:3]
    return Calendar(read, zone, not minute.startswith("*") and not hour.startswith("*"))
