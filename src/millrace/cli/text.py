"""Text for people: escapes untrusted text, and formats instants and durations.

Ids, names and errors may contain any text. Control characters could change the terminal, and tabs and line breaks would
break the columns of tab-separated output, so they are escaped.
"""

from __future__ import annotations

from datetime import UTC, datetime

from millrace.app.duration import milliseconds
from millrace.app.format import span


def safe(text: str) -> str:
    """Return the text on one line, with every non-printing character escaped."""
    return text if text.isprintable() else "".join(map(_escaped, text))


def safe_block(text: str) -> str:
    """Return the text with every non-printing character escaped, except line breaks."""
    return "\n".join(map(safe, text.splitlines()))


def _escaped(character: str) -> str:
    if character.isprintable():
        return character
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")


def cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def clock(at: int) -> str:
    """Return the instant as local time of day. The date is added unless it is today."""
    try:
        when = datetime.fromtimestamp(at / 1000, UTC).astimezone()
    except (OverflowError, ValueError, OSError):
        return str(at)
    text = when.replace(tzinfo=None).isoformat(sep=" ", timespec="milliseconds")
    return text.partition(" ")[2] if when.date() == datetime.now(UTC).astimezone().date() else text


def ago(at: int, now: int) -> str:
    return f"{span(now - at)} ago" if at <= now else f"in {span(at - now)}"


def duration(what: str, text: str) -> int:
    """Parse a duration and return milliseconds. A bare number (90) is seconds; 10m and 1h30m have units."""
    plain = text.strip()
    if plain.isascii() and plain.replace(".", "", 1).isdigit() and len(plain) <= 20:
        return milliseconds(what, float(plain))
    return milliseconds(what, text)
