"""What a spec must look like before any store does I/O for it: the same error on every store (X2)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import get_args

import msgspec

from millrace.domain.errors import InvalidInput, PayloadInvalid
from millrace.domain.job import OnDependency, OnHit, Scope, Spec

MAX_PAYLOAD = 1 << 20
LARGE_PAYLOAD = 256 << 10
MAX_HEADERS = 64 << 10  # names and values together
MAX_ID_CHARACTERS = 200
MAX_ID_BYTES = 800
MAX_DURATION = 100 * 365 * 24 * 3600 * 1000  # a century: further off is a mistake in units
MAX_PARENTS = 10_000

_SCOPES = get_args(Scope)
_HITS = get_args(OnHit)
_POLICIES = get_args(OnDependency)
_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")


@lru_cache(maxsize=4096)  # names are few, and every enqueue comes by here
def _is_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def check_name(kind: str, name: object) -> None:
    if not isinstance(name, str) or not _is_name(name):
        raise InvalidInput(
            f"{kind} name {name!r} is not allowed: use 1 to 128 letters, digits, dots, underscores or hyphens"
        )


def check_id(kind: str, text: object) -> None:
    """Ids may be any text, within a length; no store ever uses one as a file or key name unencoded (BR-18)."""
    if not isinstance(text, str) or not 1 <= len(text) <= MAX_ID_CHARACTERS:
        size = len(text) if isinstance(text, str) else type(text).__name__
        raise InvalidInput(f"{kind} must be text of 1 to {MAX_ID_CHARACTERS} characters, this one has {size}")
    if text.isascii():
        if "\0" in text:
            raise InvalidInput(f"{kind} {text!r} holds a NUL character; remove it")
        return
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise InvalidInput(f"{kind} {text!r} holds half a surrogate pair, which no store can keep") from None
    if size > MAX_ID_BYTES or "\0" in text:
        raise InvalidInput(f"{kind} {text[:40]!r}… is longer than {MAX_ID_BYTES} bytes or holds a NUL character")


def check_duration(what: str, value: object, least: int = 0) -> None:
    if not isinstance(value, int) or not least <= value <= MAX_DURATION:
        raise InvalidInput(f"{what} must be between {least} and {MAX_DURATION} milliseconds, not {value!r}")


def check_priority(value: object) -> None:
    if not isinstance(value, int) or not 0 <= value <= 15:
        raise InvalidInput(f"priority must be a whole number from 0 to 15, not {value!r}; higher runs first")


def _check_count(what: str, value: object) -> None:
    if not isinstance(value, int) or value < 1:
        raise InvalidInput(f"{what} must be at least 1 or None, not {value!r}; it is a whole number")


def _check_choices(spec: Spec) -> None:
    """Words from a short list; the usual ones are looked at first, because every enqueue comes by here."""
    if spec.key is not None:
        if spec.scope not in _SCOPES:
            raise InvalidInput(f"scope {spec.scope!r} is not known; use one of {', '.join(_SCOPES)}")
        if spec.on_hit not in _HITS:
            raise InvalidInput(f"on_hit {spec.on_hit!r} is not known; use one of {', '.join(_HITS)}")
    if spec.on_dependency != "bury" and spec.on_dependency not in _POLICIES:
        raise InvalidInput(f"on_dependency {spec.on_dependency!r} is not known; use one of {', '.join(_POLICIES)}")
    if spec.on_timeout not in {"retry", "bury"}:
        raise InvalidInput(f"on_timeout {spec.on_timeout!r} is not known; use 'retry' or 'bury'")


def _check_headers(headers: dict[str, str]) -> None:
    try:
        size = len("".join([*headers.keys(), *headers.values()]).encode())
    except (TypeError, UnicodeEncodeError):
        raise InvalidInput(f"headers must be text by text, without half a surrogate pair; not {headers!r}") from None
    if size > MAX_HEADERS:
        raise InvalidInput(f"the headers have {size:,} bytes; at most {MAX_HEADERS:,} are taken. Use the payload.")


def check_spec(spec: Spec) -> None:
    check_id("job id", spec.id)
    check_name("task", spec.task)
    check_name("queue", spec.queue)
    check_priority(spec.priority)
    if spec.token:
        check_id("token", spec.token)
    _check_choices(spec)
    if len(spec.payload) > MAX_PAYLOAD:
        raise PayloadInvalid(
            f"the payload of job {spec.id!r} is {len(spec.payload):,} bytes; at most {MAX_PAYLOAD:,} are taken. "
            "Keep big data elsewhere and pass a reference to it."
        )
    if spec.delay:
        check_duration("delay", spec.delay)
    if spec.expires is not None:
        check_duration("expires", spec.expires, 1)
    if spec.group is not None:
        check_id("group", spec.group)
    if spec.key is not None:
        check_id("key", spec.key)
        if spec.scope == "window":
            check_duration("window", spec.window, 1)
    if spec.after:
        if len(spec.after) > MAX_PARENTS:
            raise InvalidInput(f"job {spec.id!r} names {len(spec.after)} parents; at most {MAX_PARENTS} are taken")
        for parent in spec.after:
            check_id("parent id", parent)
    if spec.max_attempts is not None:
        _check_count("max_attempts", spec.max_attempts)
    if spec.max_stalls is not None:
        _check_count("max_stalls", spec.max_stalls)
    if spec.headers:
        _check_headers(spec.headers)
    if spec.timeout is not None:
        check_duration("timeout", spec.timeout, 1)
    check_duration("lease", spec.lease, 1)
    if spec.keep_result is not None:
        check_duration("keep_result", spec.keep_result)
    if spec.on_dead_letter is not None:
        check_name("task", spec.on_dead_letter)


class Checked(list[Spec]):
    """Specs that were checked as they were made, so that nobody need look at each of them again."""


def specs_like(template: Spec, ids: Sequence[str], payloads: Sequence[bytes]) -> Checked:
    """A spec for each generated id and its payload, the id being its token too. The rest is the same in all, and is
    checked once."""
    replace = msgspec.structs.replace
    made = Checked(
        [
            replace(template, id=job_id, payload=payload, token=job_id)
            for job_id, payload in zip(ids, payloads, strict=True)
        ]
    )
    if made:
        check_spec(max(made, key=_payload_size))
    return made


def check_specs(specs: Sequence[Spec]) -> None:
    if type(specs) is not Checked:
        for spec in specs:
            check_spec(spec)


def _payload_size(spec: Spec) -> int:
    return len(spec.payload)
