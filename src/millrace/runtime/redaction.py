"""Redaction: which fields of payloads nobody is shown, by one rule for the HTTP API, dashboards, logs and traces.

The rule is data, a list of phrases, so that a page without a server applies the very same one. A field's name is read
as words (`apiKey`, `api_key` and `API-Key` are "api key"), and it is hidden when a phrase stands in it, unless it only
counts something (`tokens_used`). What stood in a hidden field is also taken out of the job's errors (secrets.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from millrace.domain.errors import InvalidInput
from millrace.domain.job import Job
from millrace.domain.outcome import Failure
from millrace.runtime.secrets import HIDDEN, NO_SECRETS, SHORTEST, UNKNOWN, Secrets
from millrace.runtime.serde import Serdes

USUAL = (
    "access key",
    "access keys",
    "api key",
    "api keys",
    "apikey",
    "apikeys",
    "auth",
    "authorization",
    "bearer",
    "card number",
    "card numbers",
    "cookie",
    "cookies",
    "credential",
    "credentials",
    "cvc",
    "cvv",
    "iban",
    "ibans",
    "passphrase",
    "passphrases",
    "passwd",
    "password",
    "passwords",
    "pin",
    "pins",
    "private key",
    "private keys",
    "pwd",
    "secret",
    "secrets",
    "session id",
    "session ids",
    "ssn",
    "token",
    "tokens",
)
COUNTS = (  # of a language model, say: how many, not which
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
DEEPEST = 100
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


def words_of(name: str) -> str:
    """`userAPIKey` as "user api key"."""
    return " ".join(_WORD.findall(name)).lower()


class Redaction:
    """`more` adds phrases to the usual ones; `usual=()` leaves only those that are given."""

    def __init__(self, more: Iterable[str] = (), *, usual: Iterable[str] = USUAL) -> None:
        self.phrases = tuple(sorted({_phrase(text) for text in (*usual, *more)}))
        self._pattern = _any_of(self.phrases)
        self._counts = _any_of(phrase for phrase in COUNTS if phrase not in self.phrases)
        self._known: dict[str, bool] = {}  # names are few, and payloads are many

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


def secrets_of(job: Job, rule: Redaction, serdes: Serdes) -> Secrets:
    """What the errors of this job must not quote. It decodes the payload: ask once for as many errors as there are."""
    if not rule.phrases:
        return NO_SECRETS
    payload = read_plain(job.spec.payload, job.spec.serde, serdes)
    return UNKNOWN if payload is HIDDEN else Secrets(rule.secrets(payload, job.spec.headers or {}))


def failure_without(error: Failure | None, secrets: Secrets) -> Failure | None:
    return None if error is None else secrets.failure(error)


def _any_of(phrases: Iterable[str]) -> re.Pattern[str] | None:
    choice = "|".join(map(re.escape, phrases))
    return re.compile(rf"\b(?:{choice})\b") if choice else None


def _phrase(text: object) -> str:
    words = words_of(text) if isinstance(text, str) else ""
    if not words:
        raise InvalidInput(f"{text!r} names no field to redact; give words such as 'api key' or 'iban'")
    return words
