"""What a spec must look like before any store does I/O for it (part 2: sizes and names; X2, BR-18)."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.domain.errors import InvalidInput, PayloadInvalid
from millrace.domain.job import Spec
from millrace.domain.rules.check import (
    MAX_DURATION,
    MAX_PARENTS,
    MAX_PAYLOAD,
    check_duration,
    check_id,
    check_name,
    check_priority,
    check_spec,
    specs_like,
)


def spec(**changes: Any) -> Spec:
    return Spec(**{"id": "a", "task": "t", **changes})


@pytest.mark.parametrize("name", ["a", "A-Z_a.z-0", "x" * 128])
def test_good_names(name: str) -> None:
    check_name("queue", name)


@pytest.mark.parametrize("name", ["", "x" * 129, "a b", "a/b", "ä", "a\n", None, 5, b"a"])
def test_bad_names(name: object) -> None:
    with pytest.raises(InvalidInput, match="queue name .* is not allowed"):
        check_name("queue", name)


@pytest.mark.parametrize("text", ["a", "x" * 200, "ä" * 200, "😀" * 200, "a:b/../c", "\n", "\x01"])
def test_good_ids(text: str) -> None:
    check_id("job id", text)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "this one has 0"),
        ("x" * 201, "this one has 201"),
        (None, "this one has NoneType"),
        (b"a", "this one has bytes"),
        ("a\0", "NUL"),
        ("ä\0", "NUL"),
        ("\ud800", "surrogate"),
    ],
)
def test_bad_ids(text: object, complaint: str) -> None:
    with pytest.raises(InvalidInput, match=complaint):
        check_id("job id", text)


@given(st.text(min_size=1, max_size=200).filter(lambda text: "\0" not in text))
def test_any_text_within_its_length_is_an_id(text: str) -> None:
    check_id("job id", text)


@pytest.mark.parametrize("value", [0, 1, MAX_DURATION])
def test_good_durations(value: int) -> None:
    check_duration("delay", value)


@pytest.mark.parametrize("value", [-1, MAX_DURATION + 1, 1.5, math.nan, "5", None])
def test_bad_durations(value: object) -> None:
    with pytest.raises(InvalidInput, match="delay must be between 0 and"):
        check_duration("delay", value)


def test_a_duration_may_have_a_floor() -> None:
    check_duration("lease", 1, 1)
    with pytest.raises(InvalidInput, match="between 1 and"):
        check_duration("lease", 0, 1)


@pytest.mark.parametrize("value", [-1, 16, 1.0, None, "3"])
def test_bad_priorities(value: object) -> None:
    with pytest.raises(InvalidInput, match="whole number from 0 to 15"):
        check_priority(value)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"priority": 0},
        {"priority": 15},
        {"payload": b"x" * MAX_PAYLOAD},
        {"delay": MAX_DURATION},
        {"expires": 1},
        {"group": "g"},
        {"key": "k"},
        {"key": "k", "scope": "window", "window": 1},
        {"after": ("b",)},
        {"after": tuple(map(str, range(MAX_PARENTS)))},
        {"max_attempts": 1},
        {"max_attempts": None},
        {"max_stalls": 1},
        {"max_stalls": None},
        {"timeout": 1},
        {"timeout": None},
        {"lease": 1},
        {"keep_result": 0},
        {"keep_result": None},
        {"on_dead_letter": "mourn"},
        {"token": ""},
        {"token": "t" * 200},
    ],
    ids=lambda changes: ",".join(changes) or "plain",
)
def test_good_specs(changes: dict[str, Any]) -> None:
    check_spec(spec(**changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"id": ""},
        {"task": ""},
        {"queue": ""},
        {"priority": -1},
        {"priority": 16},
        {"delay": -1},
        {"expires": 0},
        {"group": ""},
        {"key": ""},
        {"key": "k", "scope": "window", "window": 0},
        {"key": "k", "scope": "window", "window": -5},
        {"key": "k", "scope": "live", "window": 5},
        {"key": "k", "scope": "live", "on_hit": "extend"},
        {"key": "k", "scope": "retained", "on_hit": "extend"},
        {"scope": "window", "window": 5},
        {"scope": "retained"},
        {"window": 5},
        {"on_hit": "raise"},
        {"after": ("",)},
        {"after": tuple(map(str, range(MAX_PARENTS + 1)))},
        {"max_attempts": 0},
        {"max_attempts": 2.5},
        {"max_stalls": 1.5},
        {"headers": {"trace": "\udc80"}},
        {"headers": {"trace": 1}},
        {"headers": {"trace": "x" * (64 << 10)}},
        {"max_stalls": 0},
        {"timeout": 0},
        {"lease": 0},
        {"keep_result": -1},
        {"on_dead_letter": ""},
        {"token": "t" * 201},
    ],
    ids=",".join,
)
def test_bad_specs(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        check_spec(spec(**changes))


def test_a_payload_above_a_mebibyte_is_refused_with_its_size() -> None:
    with pytest.raises(PayloadInvalid, match="1,048,577 bytes; the limit is 1,048,576"):
        check_spec(spec(payload=b"x" * (MAX_PAYLOAD + 1)))


def test_specs_from_a_template_are_checked_by_the_largest_payload() -> None:
    assert specs_like(spec(), [], []) == []
    assert [(one.id, one.payload, one.token) for one in specs_like(spec(), ["x"], [b"1"])] == [("x", b"1", "x")]
    with pytest.raises(PayloadInvalid):
        specs_like(spec(), ["x", "y", "z"], [b"1", b"2" * (MAX_PAYLOAD + 1), b"3"])
