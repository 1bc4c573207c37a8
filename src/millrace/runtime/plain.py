"""Plain data that is safe to store: finite numbers, bounded nesting, text keys.

JSON has no NaN and no number keys: an encoder that writes null and "1" instead would change a payload without
a word. Nesting is bounded because every reader of a store recurses, down to a dashboard in a browser.
"""

from __future__ import annotations

import math
from itertools import count
from typing import Any

from millrace.domain.errors import PayloadInvalid

MAX_DEPTH = 64


def refuse_unsafe(where: str, value: Any, *, finite: bool, keys: bool) -> None:
    """Look at everything inside `value`, not recursively: the point is to survive what is too deep."""
    level: list[tuple[str, Any]] = [("", value)]
    for depth in count(1):
        below: list[tuple[str, Any]] = []
        for path, one in level:
            if isinstance(one, float):
                if finite and not math.isfinite(one):
                    raise not_finite(f"{where}: {_place(path)}", one)
                continue
            if depth > MAX_DEPTH:
                raise too_deep(where)
            if isinstance(one, dict):
                if keys:
                    _refuse_keys(where, path, one)
                below += [(f"{path}.{key}", inner) for key, inner in one.items() if _may_hold(inner)]
            else:
                below += [(f"{path}[{index}]", inner) for index, inner in enumerate(one) if _may_hold(inner)]
        if not below:
            return
        level = below


def not_finite(where: str, value: float) -> PayloadInvalid:
    return PayloadInvalid(
        f'{where} is {value!r}, which JSON cannot hold. Pass None, or text, or give the task serde="msgpack".'
    )


def too_deep(where: str) -> PayloadInvalid:
    return PayloadInvalid(
        f"{where}: the data is nested deeper than {MAX_DEPTH} levels, or holds itself. Pass flatter data."
    )


def may_be_deep(data: bytes, json: bool) -> bool:
    """Cheap and on the safe side: data that is nested too deep opens at least that many brackets."""
    if len(data) <= MAX_DEPTH:
        return False
    return not json or data.count(b"[") + data.count(b"{") > MAX_DEPTH


def _refuse_keys(where: str, path: str, one: dict[Any, Any]) -> None:
    for key in one:
        if not isinstance(key, str):
            raise PayloadInvalid(
                f"{where}: {_place(path)} has the key {key!r}, which would come back as text. "
                f"Use text keys, or annotate the parameter, e.g. dict[{type(key).__name__}, …]."
            )


def _may_hold(value: Any) -> bool:
    return isinstance(value, (float, dict, list, tuple, set, frozenset))


def _place(path: str) -> str:
    return f"parameter {path.lstrip('.')!r}" if path else "the value"
