"""Validation of specs before any I/O, so that every store raises the same errors."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import get_args

import msgspec

from millrace.domain.errors import InvalidInput, PayloadInvalid
from millrace.domain.job import OnDependency, OnHit, Scope, Spec
from millrace.domain.rules.precedence import ALL_ORIGINS

MAX_PAYLOAD = 1 << 20
LARGE_PAYLOAD = 256 << 10
MAX_HEADERS = 64 << 10  # bytes of all names and values
MAX_ID_CHARACTERS = 200
MAX_ID_BYTES = 800
MAX_DURATION = 100 * 365 * 24 * 3600 * 1000  # a century: more is a mistake in units
MAX_PARENTS = 10_000
MAX_TAGS = 20
MAX_TAG_CHARACTERS = 64

_SCOPES = get_args(Scope)
_HITS = get_args(OnHit)
_POLICIES = get_args(OnDependency)
_TAG = re.compile(rf"[^\s,\0]{{1,{MAX_TAG_CHARACTERS}}}")
_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")


@lru_cache(maxsize=4096)  # every enqueue checks names, and there are few of them
def _is_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def check_name(kind: str, name: object) -> None:
    if not isinstance(name, str) or not _is_name(name):
        raise InvalidInput(
            f"{kind} name {name!r} is not allowed: use 1 to 128 letters, digits, dots, underscores or hyphens"
        )


def check_id(kind: str, text: object) -> None:
    """Raise InvalidInput unless `text` can be an id: any text of limited length without NUL or lone surrogates."""
    if not isinstance(text, str) or not 1 <= len(text) <= MAX_ID_CHARACTERS:
        size = len(text) if isinstance(text, str) else type(text).__name__
        raise InvalidInput(f"{kind} must be text of 1 to {MAX_ID_CHARACTERS} characters, this one has {size}")
    if text.isascii():
        if "\0" in text:
            raise InvalidInput(f"{kind} {text!r} contains a NUL character; remove it")
        return
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise InvalidInput(f"{kind} {text!r} contains a lone surrogate, which cannot be stored; remove it") from None
    if size > MAX_ID_BYTES or "\0" in text:
        raise InvalidInput(f"{kind} {text[:40]!r}… is longer than {MAX_ID_BYTES} bytes or contains a NUL character")


def check_tag(tag: object) -> None:
    """Raise InvalidInput unless `tag` can be a tag: one short word."""
    if not isinstance(tag, str) or not _TAG.fullmatch(tag):
        raise InvalidInput(
            f"tag {tag!r} is not allowed: use 1 to {MAX_TAG_CHARACTERS} characters without spaces and commas"
        )
    check_id("tag", tag)


def _check_tags(tags: tuple[str, ...]) -> None:
    if len(tags) > MAX_TAGS:
        raise InvalidInput(f"a job has at most {MAX_TAGS} tags, not {len(tags)}. Use headers or the payload for data.")
    for tag in tags:
        check_tag(tag)


def check_duration(what: str, value: object, least: int = 0) -> None:
    if not isinstance(value, int) or not least <= value <= MAX_DURATION:
        raise InvalidInput(f"{what} must be between {least} and {MAX_DURATION} milliseconds, not {value!r}")


def check_priority(value: object) -> None:
    if not isinstance(value, int) or not 0 <= value <= 15:
        raise InvalidInput(f"priority must be a whole number from 0 to 15, not {value!r}; higher runs first")


def _check_count(what: str, value: object) -> None:
    if not isinstance(value, int) or value < 1:
        raise InvalidInput(f"{what} must be a whole number of at least 1, or None, not {value!r}")


def _check_choices(spec: Spec) -> None:
    """Raise InvalidInput if an option with a fixed set of values has another value.

    Defaults are compared first, because this runs on every enqueue.
    """
    if spec.key is not None:
        if spec.scope not in _SCOPES:
            raise InvalidInput(f"scope {spec.scope!r} is not known; use one of {', '.join(_SCOPES)}")
        if spec.on_hit not in _HITS:
            raise InvalidInput(f"on_hit {spec.on_hit!r} is not known; use one of {', '.join(_HITS)}")
        _check_window(spec)
    elif spec.scope != "live" or spec.window or spec.on_hit != "keep":
        _refuse_without_key(spec)
    if spec.on_dependency != "bury" and spec.on_dependency not in _POLICIES:
        raise InvalidInput(f"on_dependency {spec.on_dependency!r} is not known; use one of {', '.join(_POLICIES)}")
    if spec.on_timeout not in {"retry", "bury"}:
        raise InvalidInput(f"on_timeout {spec.on_timeout!r} is not known; use 'retry' or 'bury'")


def _check_window(spec: Spec) -> None:
    """Raise InvalidInput if scope='window' has no `window`, or if an option for windows is used with another scope."""
    if spec.scope == "window":
        if not spec.window:
            raise InvalidInput(
                "scope='window' needs window: how long the key is held. Pass window, such as window='10m'."
            )
        check_duration("window", spec.window, 1)
    elif spec.window or spec.on_hit == "extend":
        what = f"window={spec.window!r}" if spec.window else "on_hit='extend'"
        raise InvalidInput(
            f"{what} needs scope='window', and the scope is {spec.scope!r}. "
            f"Pass scope='window' with a window, or leave {what.partition('=')[0]} out."
        )


def _refuse_without_key(spec: Spec) -> None:
    given = {"scope": spec.scope != "live", "window": spec.window, "on_hit": spec.on_hit != "keep"}
    name = next(name for name, is_given in given.items() if is_given)
    raise InvalidInput(
        f"{name}={getattr(spec, name)!r} has an effect only with a key, and this job has none. "
        f"Pass key, or remove {name}."
    )


def _check_headers(headers: dict[str, str]) -> None:
    try:
        size = len("".join([*headers.keys(), *headers.values()]).encode())
    except (TypeError, UnicodeEncodeError):
        raise InvalidInput(f"headers must map text to text, without lone surrogates; not {headers!r}") from None
    if size > MAX_HEADERS:
        raise InvalidInput(f"the headers have {size:,} bytes; the limit is {MAX_HEADERS:,}. Use the payload.")


def check_payload(spec: Spec) -> None:
    if len(spec.payload) > MAX_PAYLOAD:
        raise PayloadInvalid(
            f"the payload of job {spec.id!r} has {len(spec.payload):,} bytes; the limit is {MAX_PAYLOAD:,}. "
            "Store large data elsewhere and pass a reference to it."
        )


def check_spec(spec: Spec) -> None:
    check_id("job id", spec.id)
    check_name("task", spec.task)
    check_name("queue", spec.queue)
    check_priority(spec.priority)
    if spec.token:
        check_id("token", spec.token)
    _check_choices(spec)
    check_payload(spec)
    if spec.origin and not (type(spec.origin) is int and 0 <= spec.origin <= ALL_ORIGINS):
        raise InvalidInput(f"origin {spec.origin!r} is not known; remove it")
    if spec.delay:
        check_duration("delay", spec.delay)
    if spec.expires is not None:
        check_duration("expires", spec.expires, 1)
    if spec.group is not None:
        check_id("group", spec.group)
    if spec.key is not None:
        check_id("key", spec.key)
    if spec.after:
        if len(spec.after) > MAX_PARENTS:
            raise InvalidInput(f"job {spec.id!r} has {len(spec.after)} parents; the limit is {MAX_PARENTS}")
        for parent in spec.after:
            check_id("parent id", parent)
    if spec.max_attempts is not None:
        _check_count("max_attempts", spec.max_attempts)
    if spec.max_stalls is not None:
        _check_count("max_stalls", spec.max_stalls)
    if spec.headers:
        _check_headers(spec.headers)
    if spec.tags:
        _check_tags(spec.tags)
    if spec.timeout is not None:
        check_duration("timeout", spec.timeout, 1)
    check_duration("lease", spec.lease, 1)
    if spec.keep_result is not None:
        check_duration("keep_result", spec.keep_result)
    if spec.on_dead_letter is not None:
        check_name("task", spec.on_dead_letter)


class Checked(list[Spec]):
    """A list of specs that were already validated, so that stores do not validate them again."""


def specs_like(template: Spec, ids: Sequence[str], payloads: Sequence[bytes]) -> Checked:
    """Return one spec for each id and payload. The other fields are copied from `template` and validated once.

    The token of each spec is the spec's id.
    """
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
