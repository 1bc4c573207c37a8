"""Which of lease, timeout, retry and max_attempts were said, and by whom: what a spec tells of it."""

from __future__ import annotations

from itertools import chain, combinations
from typing import Any

import pytest

from millrace.domain.errors import InvalidInput
from millrace.domain.job import Spec
from millrace.domain.retry import RetryPolicy
from millrace.domain.rules.check import check_spec
from millrace.domain.rules.precedence import ALL_ORIGINS, NAMES, is_explicit, with_defaults, with_origin

OTHERS: dict[str, Any] = {
    "lease": 5,
    "timeout": None,
    "retry": RetryPolicy(delays=(1,)),
    "max_attempts": 9,
    "keep_result": 0,
}
ANY_OF_THEM = list(chain.from_iterable(combinations(NAMES, size) for size in range(len(NAMES) + 1)))


@pytest.mark.parametrize("said", ANY_OF_THEM, ids=" ".join)
@pytest.mark.parametrize("values", [{}, OTHERS], ids=["built in", "others"])
def test_a_spec_tells_what_was_said_whatever_the_value(said, values):
    spec = with_origin(Spec("id", "task", **values), said)

    assert [name for name in NAMES if is_explicit(spec, name)] == list(said)
    assert spec.origin <= ALL_ORIGINS
    check_spec(spec)


def test_a_spec_made_by_hand_says_what_is_not_built_in():
    spec = Spec("id", "task", timeout=7, max_attempts=None)

    assert [name for name in NAMES if is_explicit(spec, name)] == ["timeout", "max_attempts"]


def test_the_usual_specs_carry_nothing_for_it():
    assert with_origin(Spec("id", "task"), ()).origin == 0
    assert with_origin(Spec("id", "task", **OTHERS), NAMES).origin == 0


def test_defaults_fill_in_what_was_not_said():
    spec = with_origin(Spec("id", "task", timeout=7), ["timeout", "lease"])

    filled = with_defaults(spec, OTHERS)

    assert (filled.timeout, filled.lease) == (7, spec.lease)
    assert (filled.retry, filled.max_attempts, filled.keep_result) == (OTHERS["retry"], 9, 0)
    assert with_defaults(spec, {"timeout": 8}) is spec


@pytest.mark.parametrize("origin", [-1, 1024, True, "said"])
def test_an_origin_that_means_nothing_is_refused(origin):
    with pytest.raises(InvalidInput, match="origin"):
        check_spec(Spec("id", "task", origin=origin))
