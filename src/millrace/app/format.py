"""Conversion between text and instants, durations and counts, for the command line and the HTTP API."""

from __future__ import annotations

from datetime import UTC, datetime

from millrace.app.duration import milliseconds
from millrace.domain.errors import InvalidInput


def instant(at: int) -> str:
    """Return `at`, in milliseconds since 1970, as ISO 8601 text in UTC.

    If `at` is not a valid date, return the number as text.
    """
    try:
        return datetime.fromtimestamp(at / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (OverflowError, ValueError, OSError):
        return str(at)


_STEPS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s"))


def span(duration: float) -> str:
    """Return a duration in milliseconds as text with at most two units: 250ms, 4.2s, 3m 12s, 5d 2h."""
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
    """Parse a date and time, or a duration before `now`, and return milliseconds since 1970.

    Raises InvalidInput for any other text. `what` is the name of the value in the message.
    """
    if text[:4].isdigit() and "-" in text:
        try:
            when = datetime.fromisoformat(text)
            when = when if when.tzinfo is not None else when.astimezone()
            return round(when.timestamp() * 1000)
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
