"""Durations as people write them."""

from datetime import timedelta

import pytest

from millrace.app.duration import milliseconds
from millrace.domain.errors import InvalidInput


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (0, 0),
        (90, 90_000),
        (0.25, 250),
        (0.29, 290),
        (timedelta(minutes=10), 600_000),
        ("10m", 600_000),
        ("1h30m", 5_400_000),
        ("1h 30m", 5_400_000),
        ("250ms", 250),
        ("1.5s", 1_500),
        ("2d", 172_800_000),
        ("1W", 604_800_000),
    ],
)
def test_seconds_timedeltas_and_text_are_durations(written, meant):
    assert milliseconds("delay", written) == meant


def test_a_duration_above_zero_never_becomes_none_at_all():
    assert milliseconds("timeout", 0.0001) == 1
    assert milliseconds("timeout", timedelta(microseconds=1)) == 1


@pytest.mark.parametrize(
    "written",
    [
        -1,
        -0.5,
        float("nan"),
        float("inf"),
        timedelta(seconds=-1),
        "-5m",
        "10",
        "",
        "5 parsecs",
        "m",
        True,
        None,
        [5],
        b"5m",
    ],
)
def test_what_is_no_duration_is_refused_by_name(written):
    with pytest.raises(InvalidInput, match=r"^delay .*(duration|at least 0)") as refused:
        milliseconds("delay", written)

    assert "Use seconds" in str(refused.value)


@pytest.mark.parametrize("written", [10**12, 1e300, 10**400, "99999w"], ids=lambda written: str(written)[:9])
def test_more_than_a_century_is_taken_for_a_mistake_in_units(written):
    with pytest.raises(InvalidInput, match="century"):
        milliseconds("delay", written)
