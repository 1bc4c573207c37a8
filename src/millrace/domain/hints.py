"""What somebody may have meant who wrote a name that nobody knows."""

from __future__ import annotations

from collections.abc import Iterable


def meant(name: object, known: Iterable[str]) -> str:
    """A sentence for an error message: the nearest known name, or else all of them."""
    import difflib

    names = sorted(known)
    close = difflib.get_close_matches(str(name), names, n=1)
    return f"Did you mean {close[0]!r}?" if close else f"Known are: {', '.join(names) or 'none'}."
