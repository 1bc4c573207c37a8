"""Instants, durations and counts as people read and write them; the same on the command line and over HTTP."""

from __future__ import annotations

from datetime import UTC, datetime

from millrace.domain.errors import InvalidInput
from millrace.runtime.duration import milliseconds


def instant(at: int) -> str:
    """Milliseconds since 1970 as ISO 8601 in UTC; what no calendar holds stays a number."""
    try:
        return datetime.fromtimestamp(at / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (OverflowError, ValueError, OSError):
        return str(at)


_STEPS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s"))


def span(duration: float) -> str:
    """Milliseconds in at most two units: 250ms, 4.2s, 3m 12s, 5d 2h."""
    rest = max(0, round(duration))
    if rest < 1_000:
        return f"{rest}ms"
    if rest < 10_000:
        return f"{rest / 1000:.1f}s"
    parts: list[str] = []
    for size, unit in _STEPS:
        count, rest = divmod(rest, size)
        if count or parts:
            parts.append(f"{count}{unit}")
        if len(parts) == 2:
            break
    return " ".join(part for part in parts if not part.startswith("0")) or "0s"


def moment(what: str, text: str, now: int) -> int:
    """What `since` takes: a date and time, or how long ago."""
    if text[:4].isdigit() and "-" in text:
        try:
            when = datetime.fromisoformat(text)
            when = when if when.tzinfo is not None else when.astimezone()
            return int(when.timestamp() * 1000)
        except (ValueError, OverflowError, OSError):
            raise InvalidInput(f"{what}: {text!r} is not a date such as 2026-01-31 or 2026-01-31T14:30Z") from None
    try:
        return now - milliseconds(what, text)
    except InvalidInput:
        raise InvalidInput(
            f"{what} takes how long ago, such as 90s, 15m or 2d, or a date such as 2026-01-31T14:30Z; not {text!r}"
        ) from None


def plural(count: int, one: str, many: str | None = None) -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"
