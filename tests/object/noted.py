"""A function that notes its calls and does what it always does."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def noted(function: Callable[P, R], note: Callable[..., object]) -> Callable[P, R]:
    """`function`, with `note` called first, with the same arguments."""

    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        note(*args, **kwargs)
        return function(*args, **kwargs)

    return call
