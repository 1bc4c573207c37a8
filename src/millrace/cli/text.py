"""Text for people: what came from outside made harmless, instants and durations made readable.

Ids, names and errors are whatever somebody enqueued. Control characters in them could rewrite a terminal's screen,
so none gets through; in plain output a tab or a line break inside a value would break the columns.
"""

from __future__ import annotations

from datetime import UTC, datetime

from millrace.domain.errors import InvalidInput
from millrace.runtime.duration import milliseconds


def safe(text: str) -> str:
    """One line, with every character that does not print written as an escape."""
    return text if text.isprintable() else "".join(map(_escaped, text))


def safe_block(text: str) -> str:
    """The same for text of several lines."""
    return "\n".join(map(safe, text.splitlines()))


def _escaped(character: str) -> str:
    if character.isprintable():
        return character
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")


def cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def instant(at: int) -> str:
    """Milliseconds since 1970 as ISO 8601 in UTC; what no calendar holds stays a number."""
    try:
        return datetime.fromtimestamp(at / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (OverflowError, ValueError, OSError):
        return str(at)


def clock(at: int) -> str:
    """The time of day here, for eyes; with the date when that is not today's."""
    try:
        when = datetime.fromtimestamp(at / 1000, UTC).astimezone()
    except (OverflowError, ValueError, OSError):
        return str(at)
    text = when.replace(tzinfo=None).isoformat(sep=" ", timespec="milliseconds")
    return text.partition(" ")[2] if when.date() == datetime.now(UTC).astimezone().date() else text


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


def ago(at: int, now: int) -> str:
    return f"{span(now - at)} ago" if at <= now else f"in {span(at - now)}"


def moment(what: str, text: str, now: int) -> int:
    """What `--since` takes: a date and time, or how long ago."""
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


def duration(what: str, text: str) -> int:
    """Milliseconds, from what people type: 90 is seconds, 10m and 1h30m say their units."""
    plain = text.strip()
    if plain.isascii() and plain.replace(".", "", 1).isdigit() and len(plain) <= 20:
        return milliseconds(what, float(plain))
    return milliseconds(what, text)
