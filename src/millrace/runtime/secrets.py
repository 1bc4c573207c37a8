"""Secrets: what stood in a job's hidden fields, taken out of the text of its errors, which tend to quote it.

An error quotes a value as it is, or as `repr`, JSON or a URL spell it, so each of those is looked for. Where a text was
cut to its cap, a part of a secret that stands at the cut counts too. What cannot be looked for is not shown at all: of
a payload that cannot be read nobody knows what is in it, and thousands of values would take seconds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from functools import cached_property
from urllib.parse import quote, quote_plus

from millrace.domain.outcome import CUT_END, CUT_HEAD, MAX_ERROR_TEXT, Failure

HIDDEN = "[redacted]"
SHORTEST = 4  # a shorter value would be taken out of words that have nothing to do with it
SHORTEST_PART = 3  # at a cut
MOST = 200
_SPELLED_ALIKE = re.compile(r"[A-Za-z0-9_.~-]*")


class Secrets:
    """Of one job. `texts` None: they are not known."""

    def __init__(self, texts: Iterable[str] | None) -> None:
        self._texts = sorted(texts or (), key=lambda text: (-len(text), text))
        self._instead = None
        if texts is None:
            self._instead = HIDDEN
        elif len(self._texts) > MOST:
            self._instead = f"{HIDDEN} (the payload hides more than {MOST} values: too many to look for in an error)"
        self._shown: dict[Failure, Failure] = {}  # a history tells each error three times

    @property
    def none(self) -> bool:
        return self._instead is None and not self._texts

    def failure(self, error: Failure) -> Failure:
        """The same without what is hidden; where that cannot be looked for, only its type."""
        if self.none:
            return error
        if self._instead is not None:
            return Failure(error.type, self._instead, "")
        shown = self._shown.get(error)
        if shown is None:
            shown = Failure(error.type, self.without(error.message), self.without(error.traceback))
            self._shown[error] = shown
        return shown

    def without(self, text: str) -> str:
        if self.none or not text:
            return text
        if self._instead is not None:
            return self._instead
        parts: list[str] = []
        end = 0
        for start, stop in _merged(self._found(text)):
            parts += (text[end:start], HIDDEN)
            end = stop
        return "".join([*parts, text[end:]]) if parts else text

    def within(self, value: object) -> object:
        """Plain data, its texts without what is hidden. It was bounded in depth when it was redacted."""
        if self.none:
            return value
        if isinstance(value, str):
            return self.without(value)
        if isinstance(value, dict):
            return {name: self.within(inner) for name, inner in value.items()}
        return [self.within(inner) for inner in value] if isinstance(value, list) else value

    def _found(self, text: str) -> Iterator[tuple[int, int]]:
        for spelling in self._spellings:
            at = text.find(spelling)  # hundreds of these take less than one pattern of hundreds of choices
            while at >= 0:
                yield at, at + len(spelling)
                at = text.find(spelling, at + len(spelling))
        if text.endswith(CUT_END):
            end = len(text) - len(CUT_END)
            for spelling in self._spellings:
                at = text.find(spelling[:SHORTEST_PART], max(0, end - len(spelling)), end)
                while at >= 0 and not spelling.startswith(text[at:end]):
                    at = text.find(spelling[:SHORTEST_PART], at + 1, end)
                if at >= 0:
                    yield at, end
        if text.startswith(CUT_HEAD):
            start = len(CUT_HEAD)
            for spelling in self._spellings:
                at = text.rfind(spelling[-SHORTEST_PART:], start, start + len(spelling))
                while at >= 0 and not spelling.endswith(text[start : at + SHORTEST_PART]):
                    at = text.rfind(spelling[-SHORTEST_PART:], start, at + SHORTEST_PART - 1)
                if at >= 0:
                    yield start, at + SHORTEST_PART

    @cached_property
    def _spellings(self) -> list[str]:
        return list(dict.fromkeys(spelling for text in self._texts for spelling in spellings(text)))


def spellings(text: str) -> Iterator[str]:
    """As itself, and as an error may quote it. Of what is longer than any error, its beginning and its end."""
    if len(text) > MAX_ERROR_TEXT:
        yield from spellings(text[:MAX_ERROR_TEXT])
        yield from spellings(text[-MAX_ERROR_TEXT:])
        return
    yield text
    if _SPELLED_ALIKE.fullmatch(text):
        return
    yield repr(text)[1:-1]
    yield repr('"' + text)[2:-1]  # inside a text that has both kinds of quotes
    yield json.dumps(text)[1:-1]
    yield json.dumps(text, ensure_ascii=False)[1:-1]
    encoded = text.encode(errors="replace")
    yield quote(encoded)
    yield quote(encoded, safe="")
    yield quote_plus(encoded)


def _merged(spans: Iterator[tuple[int, int]]) -> list[tuple[int, int]]:
    """Those that overlap become one: of two secrets that do, no rest is left."""
    merged: list[tuple[int, int]] = []
    for start, stop in sorted(spans):
        if merged and start < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], stop))
        else:
            merged.append((start, stop))
    return merged


NO_SECRETS = Secrets(())
UNKNOWN = Secrets(None)
