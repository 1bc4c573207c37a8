"""Text for people: what came from outside made harmless, instants and durations made readable.

Ids, names and errors are whatever somebody enqueued. Control characters in them could rewrite a terminal's screen,
so none gets through; in plain output a tab or a line break inside a value would break the columns.
"""

from __future__ import annotations

from datetime import UTC, datetime

from millrace.runtime.duration import milliseconds
from millrace.runtime.words import instant, moment, plural, span

__all__ = ["ago", "clock", "cut", "duration", "instant", "moment", "plural", "safe", "safe_block", "span"]


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


def clock(at: int) -> str:
    """The time of day here, for eyes; with the date when that is not today's."""
    try:
        when = datetime.fromtimestamp(at / 1000, UTC).astimezone()
    except (OverflowError, ValueError, OSError):
        return str(at)
    text = when.replace(tzinfo=None).isoformat(sep=" ", timespec="milliseconds")
    return text.partition(" ")[2] if when.date() == datetime.now(UTC).astimezone().date() else text


def ago(at: int, now: int) -> str:
    return f"{span(now - at)} ago" if at <= now else f"in {span(at - now)}"


def duration(what: str, text: str) -> int:
    """Milliseconds, from what people type: 90 is seconds, 10m and 1h30m say their units."""
    plain = text.strip()
    if plain.isascii() and plain.replace(".", "", 1).isdigit() and len(plain) <= 20:
        return milliseconds(what, float(plain))
    return milliseconds(what, text)
