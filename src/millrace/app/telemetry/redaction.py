"""Redaction: how secrets in payloads are hidden, by one rule for the HTTP API, dashboards, logs and traces.

The rule is a list of phrases, so that the dashboard in a bucket can apply the same rule. A field's name is split into
words (`apiKey`, `api_key` and `API-Key` are "api key"). The field is hidden if its name contains a phrase. The phrase
may be in the plural or written as one word (`apikeys`). A phrase of five letters or more also matches the end of a
longer word (`dbpassword`, `refreshtoken`). A field that only counts something (`tokens_used`) is not hidden.

The values of hidden fields are also removed from the job's errors, which often quote them, either unchanged or as
`repr`, JSON or a URL would write them. If a text was cut, a part of a secret at the cut is removed too. An error is
hidden completely if the payload cannot be decoded, or if the payload has so many hidden values that a search for them
would take seconds.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any, TypeVar
from urllib.parse import quote, quote_plus

import msgspec

from millrace.app.payloads.serde import Serdes
from millrace.domain.errors import InvalidInput
from millrace.domain.job import Job
from millrace.domain.outcome import CUT_END, CUT_HEAD, MAX_ERROR_TEXT, Failure

T = TypeVar("T")
HIDDEN = "[redacted]"
SHORTEST = 4  # a shorter value would also match inside unrelated words
SHORTEST_PART = 3  # the same for the part of a secret at a cut
MOST = 200
BLOCKING = 64 << 10  # bytes to search, about a millisecond; more is searched in a thread
_SPELLED_ALIKE = re.compile(r"[A-Za-z0-9_.~-]*")

USUAL = (
    "access key",
    "api key",
    "auth",
    "authorization",
    "bearer",
    "card number",
    "connection string",
    "connection uri",
    "connection url",
    "cookie",
    "credential",
    "cvc",
    "cvv",
    "database uri",
    "database url",
    "dsn",
    "encryption key",
    "iban",
    "jwt",
    "otp",
    "passcode",
    "passphrase",
    "passwd",
    "password",
    "pin",
    "private key",
    "pwd",
    "secret",
    "secret key",
    "session id",
    "session key",
    "signing key",
    "ssh key",
    "ssn",
    "token",
    "totp",
)
COUNTS = (  # names of numbers, such as the token counts of a language model
    "completion tokens",
    "input tokens",
    "max tokens",
    "min tokens",
    "num tokens",
    "number of tokens",
    "output tokens",
    "prompt tokens",
    "tokens used",
    "total tokens",
    "used tokens",
)
LONG = 5  # a phrase of at least this many letters also matches the end of a longer word: `token`, not `pin`
DEEPEST = 100
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


def words_of(name: str) -> str:
    """Return the words of a field name, in lower case: `userAPIKey` becomes "user api key"."""
    return " ".join(_WORD.findall(name)).lower()


class Redaction:
    """The rule for which fields are hidden. Its phrases are `usual` (by default USUAL) and `more`."""

    def __init__(self, more: Iterable[str] = (), *, usual: Iterable[str] = USUAL) -> None:
        self.phrases = tuple(sorted({_phrase(text) for text in (*usual, *more)}))
        self._pattern = _any_of(self.phrases, within_words=True)
        self._counts = _any_of(phrase for phrase in COUNTS if phrase not in self.phrases)
        self._known: dict[str, bool] = {}  # cache by field name

    def hides(self, name: str) -> bool:
        if self._pattern is None:
            return False
        known = self._known.get(name)
        if known is None:
            words = words_of(name)
            known = self._pattern.search(self._counts.sub("", words) if self._counts else words) is not None
            if len(self._known) < 10_000:
                self._known[name] = known
        return known

    def plain(self, value: Any, depth: int = 0) -> Any:
        """Return a copy of JSON-like data in which the values of hidden fields are replaced by HIDDEN."""
        if depth > DEEPEST:
            return HIDDEN
        if isinstance(value, dict):
            return {
                name: HIDDEN
                if isinstance(name, str) and self.hides(name) and inner is not None
                else self.plain(inner, depth + 1)
                for name, inner in value.items()
            }
        if isinstance(value, list | tuple):
            return [self.plain(inner, depth + 1) for inner in value]
        return value

    def secrets(self, *values: Any) -> list[str]:
        """Return the values of hidden fields as texts, the longest first. Very short values are left out."""
        found = {text for value in values for text in self._texts(value, False, 0)}
        return sorted((text for text in found if len(text) >= SHORTEST), key=len, reverse=True)

    def _texts(self, value: Any, hidden: bool, depth: int) -> Iterator[str]:
        if depth > DEEPEST:
            return
        if isinstance(value, Mapping):
            for name, inner in value.items():
                yield from self._texts(inner, hidden or (isinstance(name, str) and self.hides(name)), depth + 1)
        elif isinstance(value, list | tuple):
            for inner in value:
                yield from self._texts(inner, hidden, depth + 1)
        elif hidden and isinstance(value, str | int | float) and not isinstance(value, bool):
            yield str(value)


def read_plain(data: bytes | None, serde: str, serdes: Serdes) -> Any:
    """Return decoded data for display, or None if there is no data.

    If the data cannot be decoded, it may contain secrets, so HIDDEN is returned.
    """
    if not data:
        return None
    try:
        return msgspec.to_builtins(serdes.decode(data, serde), str_keys=True)
    except Exception:  # a custom serde may raise anything
        return HIDDEN


class Secrets:
    """The hidden values of one job, which are removed from texts. `texts` is None if the payload cannot be decoded."""

    def __init__(self, texts: Iterable[str] | None) -> None:
        self._texts = sorted(texts or (), key=lambda text: (-len(text), text))
        self._instead = None
        if texts is None:
            self._instead = HIDDEN
        elif len(self._texts) > MOST:
            self._instead = f"{HIDDEN} (the payload hides more than {MOST} values: too many to look for in an error)"
        self._shown: dict[Failure, Failure] = {}  # cache: a history has each error up to three times

    @property
    def none(self) -> bool:
        return self._instead is None and not self._texts

    def failure(self, error: Failure) -> Failure:
        """Return the error with the secrets removed.

        If they cannot be searched for, keep only the type of the error.
        """
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
        """Return JSON-like data with the secrets removed from its texts.

        This recurses, so the caller must have limited the depth of the data, as `Redaction.plain` does.
        """
        if self.none:
            return value
        if isinstance(value, str):
            return self.without(value)
        if isinstance(value, dict):
            return {name: self.within(inner) for name, inner in value.items()}
        return [self.within(inner) for inner in value] if isinstance(value, list) else value

    def _found(self, text: str) -> Iterator[tuple[int, int]]:
        for spelling in self._spellings:
            at = text.find(spelling)  # hundreds of these are faster than one pattern with hundreds of alternatives
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
    """Yield the forms in which an error may quote a text: unchanged, as `repr`, as JSON, and as part of a URL.

    For a very long text, yield the forms of its beginning and of its end.
    """
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
    """Return the spans in order, with overlapping spans merged into one."""
    merged: list[tuple[int, int]] = []
    for start, stop in sorted(spans):
        if merged and start < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], stop))
        else:
            merged.append((start, stop))
    return merged


NO_SECRETS = Secrets(())
UNKNOWN = Secrets(None)


class JobRedactor:
    """The redaction of one job. The job's payload is decoded once, and only when it is needed."""

    def __init__(self, job: Job, rule: Redaction, serdes: Serdes) -> None:
        self._job = job
        self._rule = rule
        self._serdes = serdes

    @cached_property
    def _payload(self) -> Any:
        return read_plain(self._job.spec.payload, self._job.spec.payload_serde, self._serdes)

    @cached_property
    def secrets(self) -> Secrets:
        """The values to remove from the texts of this job."""
        if not self._rule.phrases:
            return NO_SECRETS
        if self._payload is HIDDEN:
            return UNKNOWN
        return Secrets(self._rule.secrets(self._payload, self._job.spec.headers or {}))

    def payload(self) -> Any:
        return self._rule.plain(self._payload)

    def headers(self) -> dict[str, str]:
        headers: dict[str, str] = self._rule.plain(self._job.spec.headers or {})
        return headers

    def result(self) -> Any:
        return self.value(read_plain(self._job.result, self._job.spec.result_serde, self._serdes))

    def value(self, value: Any) -> Any:
        """Return JSON-like data with the values of hidden fields replaced, wherever they occur in the data."""
        return self.secrets.within(self._rule.plain(value))

    def failure(self, error: Failure) -> Failure:
        return self.secrets.failure(error)


def secrets_of(job: Job, rule: Redaction, serdes: Serdes) -> Secrets:
    return JobRedactor(job, rule, serdes).secrets


def failure_without(error: Failure | None, secrets: Secrets) -> Failure | None:
    return None if error is None else secrets.failure(error)


def size_of(job: Job) -> int:
    """Return the approximate number of bytes that must be searched to redact the whole job."""
    bodies = job.result, job.progress, job.log
    return len(job.spec.payload) * (1 + len(job.attempts)) + sum(map(len, filter(None, bodies)))


async def off_loop(size: int, make: Callable[[], T]) -> T:
    """Call `make` and return its result. Call it in a thread if searching `size` bytes would block the event loop."""
    return make() if size < BLOCKING else await asyncio.to_thread(make)


def _any_of(phrases: Iterable[str], within_words: bool = False) -> re.Pattern[str] | None:
    """Return a pattern that matches any of the phrases; None if there are no phrases.

    A phrase matches as whole words, in the plural, or written as one word. With `within_words`, a long phrase also
    matches the end of a longer word.
    """
    choices = [
        ("" if within_words and len(phrase) >= LONG else r"(?<![^ ])") + phrase.replace(" ", " ?") for phrase in phrases
    ]
    return re.compile(rf"(?:{'|'.join(choices)})s?(?![^ ])") if choices else None


def _phrase(text: object) -> str:
    words = words_of(text) if isinstance(text, str) else ""
    if not words:
        raise InvalidInput(f"{text!r} is not a field to redact; pass words such as 'api key' or 'iban'")
    return words
