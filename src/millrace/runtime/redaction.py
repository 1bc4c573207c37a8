"""Redaction: which fields of payloads nobody is shown, by one rule for the HTTP API, dashboards, logs and traces.

The rule is data, a list of phrases, so that a page without a server applies the very same one. A field's name is read
as words (`apiKey`, `api_key` and `API-Key` are "api key"), and it is hidden when a phrase stands in it. What stood in a
hidden field is also taken out of the text of the job's errors: a message tends to repeat the value it complains of.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from millrace.domain.errors import InvalidInput
from millrace.domain.job import Job
from millrace.domain.outcome import Failure
from millrace.runtime.serde import Serdes

HIDDEN = "[redacted]"
USUAL = (
    "access key",
    "api key",
    "apikey",
    "auth",
    "authorization",
    "bearer",
    "card number",
    "cookie",
    "credential",
    "credentials",
    "cvc",
    "cvv",
    "iban",
    "passphrase",
    "passwd",
    "password",
    "pin",
    "private key",
    "pwd",
    "secret",
    "secrets",
    "session id",
    "ssn",
    "token",
)
SHORTEST = 4  # a shorter value would be taken out of words that have nothing to do with it
DEEPEST = 100
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


def words_of(name: str) -> str:
    """`userAPIKey` as "user api key"."""
    return " ".join(_WORD.findall(name)).lower()


class Redaction:
    """`more` adds phrases to the usual ones; `usual=()` leaves only those that are given."""

    def __init__(self, more: Iterable[str] = (), *, usual: Iterable[str] = USUAL) -> None:
        self.phrases = tuple(sorted({_phrase(text) for text in (*usual, *more)}))
        choice = "|".join(map(re.escape, self.phrases))
        self._pattern = re.compile(rf"\b(?:{choice})\b") if choice else None
        self._known: dict[str, bool] = {}  # names are few, and payloads are many

    def hides(self, name: str) -> bool:
        if self._pattern is None:
            return False
        known = self._known.get(name)
        if known is None:
            known = self._pattern.search(words_of(name)) is not None
            if len(self._known) < 10_000:
                self._known[name] = known
        return known

    def plain(self, value: Any, depth: int = 0) -> Any:
        """The same data without what is hidden; the data itself where nothing is."""
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
        """The texts that stand in hidden fields, the longest first."""
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
    """The data; or HIDDEN when it cannot be read, because then nobody can tell what is in it."""
    if not data:
        return None
    try:
        return msgspec.to_builtins(serdes.get(serde).decode(data), str_keys=True)
    except Exception:  # a serde of somebody else's may raise anything
        return HIDDEN


def secrets_of(job: Job, rule: Redaction, serdes: Serdes) -> list[str] | None:
    """What the errors of this job must not quote; None when its payload cannot be read."""
    if not rule.phrases:
        return []
    payload = read_plain(job.spec.payload, job.spec.serde, serdes)
    return None if payload is HIDDEN else rule.secrets(payload, job.spec.headers or {})


def without(text: str, secrets: Iterable[str]) -> str:
    for secret in secrets:
        text = text.replace(secret, HIDDEN)
    return text


def failure_without(error: Failure | None, secrets: list[str] | None) -> Failure | None:
    """None for the secrets: it is not known what the error may quote, so only its type is told."""
    if error is None or secrets == []:
        return error
    if secrets is None:
        return Failure(error.type, HIDDEN, "")
    return Failure(error.type, without(error.message, secrets), without(error.traceback, secrets))


def _phrase(text: object) -> str:
    words = words_of(text) if isinstance(text, str) else ""
    if not words:
        raise InvalidInput(f"{text!r} names no field to redact; give words such as 'api key' or 'iban'")
    return words
