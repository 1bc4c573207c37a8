"""Checks that data can be stored as JSON: finite numbers, limited nesting, text keys.

JSON has neither NaN nor number keys; an encoder that writes null and "1" instead would silently change a payload.
Nesting is limited because code that reads the data recurses, including the dashboard in a browser.
"""

from __future__ import annotations

import math
from itertools import count
from typing import Any

from millrace.domain.errors import PayloadInvalid

MAX_DEPTH = 64
LONGEST_KEY = 50


Place = tuple[Any, Any] | None  # (place of the container, key); a text per value would need more memory


def refuse_unsafe(where: str, value: Any, *, finite: bool, keys: bool) -> None:
    """Raise PayloadInvalid if `value` is nested too deep.

    With `finite`, also raise for a number that is not finite; with `keys`, also for a dict key that is not text. The
    check does not recurse, so deep data cannot exhaust the stack.
    """
    if finite and isinstance(value, float) and not math.isfinite(value):
        raise not_finite(f"{where}: {_place(None)}", value)
    level: list[tuple[Place, Any]] = [(None, value)] if _may_hold(value) else []
    for depth in count(1):
        if not level:
            return
        if depth > MAX_DEPTH:
            raise too_deep(where)
        below: list[tuple[Place, Any]] = []
        for place, one in level:
            if keys and isinstance(one, dict):
                _refuse_keys(where, place, one)
            for key, inner in one.items() if isinstance(one, dict) else enumerate(one):
                if isinstance(inner, float):
                    if finite and not math.isfinite(inner):
                        raise not_finite(f"{where}: {_place((place, key))}", inner)
                elif _may_hold(inner):
                    below.append(((place, key), inner))
        level = below


def not_finite(where: str, value: float) -> PayloadInvalid:
    return PayloadInvalid(
        f'{where} is {value!r}, which JSON cannot represent. Pass None or text, or set serde="msgpack" on the task.'
    )


def too_deep(where: str) -> PayloadInvalid:
    return PayloadInvalid(
        f"{where}: the data is nested deeper than {MAX_DEPTH} levels, or contains itself. Pass flatter data."
    )


def may_be_deep(data: bytes, json: bool) -> bool:
    """Return whether encoded data may be nested too deep.

    This is a cheap test that may return True for flat data: it counts opening brackets in JSON, and looks only at the
    length of other formats.
    """
    if len(data) <= MAX_DEPTH:
        return False
    return not json or data.count(b"[") + data.count(b"{") > MAX_DEPTH


def _refuse_keys(where: str, place: Place, one: dict[Any, Any]) -> None:
    for key in one:
        if not isinstance(key, str):
            raise PayloadInvalid(
                f"{where}: {_place(place)} has the key {_short(repr(key))}, which would be decoded as text. "
                f"Use text keys, or annotate the parameter, e.g. dict[{type(key).__name__}, …]."
            )


def _may_hold(value: Any) -> bool:
    return isinstance(value, (dict, list, tuple, set, frozenset))


def _place(place: Place) -> str:
    steps: list[str] = []
    while place is not None:
        place, key = place
        steps.append(f"[{key}]" if isinstance(key, int) else f".{_short(str(key))}")
    return f"parameter {''.join(reversed(steps)).lstrip('.')!r}" if steps else "the value"


def _short(text: str) -> str:
    return text if len(text) <= LONGEST_KEY else f"{text[: LONGEST_KEY - 1]}…"
