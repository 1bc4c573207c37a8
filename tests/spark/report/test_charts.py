"""Periods, scales, formats and charts: pure, so every number on them can be checked without Spark."""

from __future__ import annotations

import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from millrace.spark.report import charts, formats
from millrace.spark.report.charts import NARROW, WIDE, Series
from millrace.spark.report.period import DAY, HOUR, MINUTE, MOST_STEPS, SECOND, Period
from millrace.spark.report.scales import linear, of_lengths, of_time
from tests.spark.report.made import BEGIN, HOSTILE, PERIOD

SVG = "{http://www.w3.org/2000/svg}"


def parsed(drawn: str) -> ElementTree.Element:
    return ElementTree.fromstring(drawn)


def told(drawn: str) -> list[str]:
    hover = next(part for part in parsed(drawn).iter("g") if part.get("class") == "hover")
    return ["".join(title.itertext()) for title in hover.iter("title")]


# ── periods ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("length", "step"),
    [
        (1, 100),
        (20 * SECOND, 200),
        (90 * SECOND, SECOND),
        (HOUR, 30 * SECOND),
        (DAY, 15 * MINUTE),
        (7 * DAY, 2 * HOUR),
        (365 * DAY, 7 * DAY),
        (40 * 365 * DAY, 364 * DAY),
    ],
)
def test_steps_are_as_fine_as_a_chart_can_show(length: int, step: int):
    period = Period.of(BEGIN, BEGIN + length)

    assert period.step == step
    assert 1 <= len(period.starts) <= MOST_STEPS
    assert period.starts[0] <= period.since and period.starts[-1] < period.until <= period.starts[-1] + step
    assert [period.place_of(start) for start in period.starts] == [*range(len(period.starts))]


def test_a_period_that_begins_within_a_step_has_no_more_of_them_than_fit():
    period = Period.of(BEGIN + 59 * MINUTE, BEGIN + 59 * MINUTE + MOST_STEPS * HOUR)

    assert len(period.starts) <= MOST_STEPS and period.step == 2 * HOUR
    assert period.starts[0] == BEGIN


# ── scales ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("greatest", "labels"),
    [
        (0, ["0", "1"]),
        (3, ["0", "1", "2", "3"]),
        (97, ["0", "25", "50", "75", "100"]),
        (1_681, ["0", "500", "1k", "1.5k", "2k"]),
        (4_000_000, ["0", "1M", "2M", "3M", "4M"]),
    ],
)
def test_counts_have_round_ticks_from_zero_to_above_the_greatest(greatest: int, labels: list[str]):
    scale = linear(greatest, 100, 0)

    assert [label for _, label in scale.ticks] == labels
    assert scale.at(0) == 100 and scale.at(scale.ticks[-1][0]) == pytest.approx(0)
    assert 0 <= scale.at(greatest) <= 100


def test_lengths_have_named_ticks_on_a_logarithmic_scale():
    scale = of_lengths(30, 50_000, 100, 0)

    assert [label for _, label in scale.ticks] == ["10 ms", "100 ms", "1 s", "10 s", "1 min"]
    assert scale.at(10) == 100 and scale.at(60_000) == pytest.approx(0)
    assert scale.at(100) - scale.at(1_000) == pytest.approx(scale.at(1_000) - scale.at(10_000))
    assert scale.at(0) == 100  # nothing falls off the chart


def test_times_are_named_at_round_instants_of_utc():
    day = of_time(BEGIN, BEGIN + DAY, 0, 240, 8)
    week = of_time(BEGIN - 3 * HOUR, BEGIN + 20 * DAY, 0, 240, 3)

    assert [label for _, label in day.ticks] == [*(f"{hour:02}:00" for hour in range(0, 24, 3)), "00:00"]
    assert [label for _, label in week.ticks] == ["Mon 2 Nov", "Mon 9 Nov", "Mon 16 Nov"]


# ── formats ───────────────────────────────────────────────────────────────────────────────────


def test_numbers_read_well():
    assert [formats.short(n) for n in (0, 7, 950, 1_200, 34_000, 5.6e6)] == ["0", "7", "950", "1.2k", "34k", "5.6M"]
    assert [formats.length(n) for n in (0, 7, 999.4, 999.9, 1_240, 210_000, 7_200_000, 2.1 * DAY)] == [
        *("0 ms", "7 ms", "999 ms", "1 s", "1.24 s", "3.5 min", "2 h", "2.1 d"),
    ]
    assert [formats.percent(n) for n in (0, 0.0004, 0.056, 0.5, 0.99, 0.9995, 1)] == [
        *("0.0 %", "<0.1 %", "5.6 %", "50 %", "99 %", ">99.9 %", "100 %"),
    ]
    assert [formats.step_name(n) for n in (200, SECOND, 30 * MINUTE, HOUR, 2 * HOUR, 7 * DAY)] == [
        *("200 ms", "second", "30 minutes", "hour", "2 hours", "week"),
    ]


def test_instants_read_well():
    assert formats.step_label(BEGIN, 200) == "Mon 2 Nov, 00:00:00.0–00:00:00.2"
    assert formats.step_label(BEGIN + HOUR, HOUR) == "Mon 2 Nov, 01:00–02:00"
    assert formats.step_label(BEGIN, 7 * DAY) == "Mon 2 Nov – Sun 8 Nov"
    assert formats.between(BEGIN, BEGIN + 2 * DAY) == "Mon 2 Nov 2026, 00:00 – Tue 3 Nov 2026, 23:59 UTC"
    assert formats.between(BEGIN, BEGIN + HOUR) == "Mon 2 Nov 2026, 00:00–00:59 UTC"


# ── charts ────────────────────────────────────────────────────────────────────────────────────


def test_columns_are_stacked_and_as_high_as_their_sum():
    period = Period(BEGIN, BEGIN + 2 * HOUR, HOUR)
    drawn = charts.columns(period, [Series("mail", [60, 0], "s1"), Series("images", [40, 50], "s2")], WIDE, "label")

    first, second = (re.findall(r"M\S+ (\S+?)V(\S+?)h", path.get("d", "")) for path in parsed(drawn).iter("path"))
    assert len(first) == 1 and len(second) == 2  # nothing is drawn for nothing
    [(floor, top)], [(low, high), _] = first, second
    assert low == top and float(high) == pytest.approx(10)  # 100 is the top of the scale
    assert (float(floor) - float(top)) / (float(low) - float(high)) == pytest.approx(1.5, rel=0.01)
    assert told(drawn) == [
        "Mon 2 Nov, 00:00–01:00\nimages: 40\nmail: 60\nin all: 100",
        "Mon 2 Nov, 01:00–02:00\nimages: 50\nin all: 50",
    ]


def test_a_line_breaks_where_nothing_was_measured_and_a_lonely_value_is_a_dot():
    period = Period(BEGIN, BEGIN + 6 * HOUR, HOUR)
    drawn = charts.lines(period, [Series("p50", [10, 20, None, 30, None, 40], "q50")], WIDE, "label")

    [path] = [part.get("d", "") for part in parsed(drawn).iter("path")]
    assert path.count("M") == 3 and path.count("L") == 1
    assert len(list(parsed(drawn).iter("circle"))) == 2
    assert told(drawn)[2] == "Mon 2 Nov, 02:00–03:00\nnothing was measured"


def test_the_names_of_lines_that_end_together_do_not_cover_each_other():
    period = Period(BEGIN, BEGIN + HOUR, HOUR)
    series = [Series(name, [10], "q50") for name in ("p50", "p95", "p99")]

    drawn = parsed(charts.lines(period, series, WIDE, "label"))

    ends = {part.text: float(part.get("y", "")) for part in drawn.iter("text") if part.get("class") == "end"}
    assert ends["p50"] - ends["p95"] >= 12 and ends["p95"] - ends["p99"] >= 12


def test_a_heat_map_shows_whatever_is_more_than_nothing():
    assert [charts.level_of(value, 6) for value in (0.001, 1, 1.001, 5.9, 6)] == [1, 1, 2, 6, 6]
    period = Period(BEGIN, BEGIN + 3 * HOUR, HOUR)

    drawn = charts.heat(period, [("w1", [0, 0.1, 4]), ("w2", [None, None, None])], NARROW, "label")

    assert sorted(part.get("class", "") for part in parsed(drawn).iter("path")) == ["h1", "h6"]
    assert told(drawn)[0].endswith("no worker held a job") and told(drawn)[2].endswith("w1: 4.00")


@pytest.mark.parametrize("width", [NARROW, WIDE])
def test_nothing_is_drawn_outside_and_no_two_times_cover_each_other(width: int):
    drawn = charts.columns(PERIOD, [Series("mail", [5] * len(PERIOD.starts), "s1")], width, "label")

    lines: dict[str | None, list[float]] = {}
    for part in parsed(drawn).iter("text"):
        if part.get("class") == "time":
            lines.setdefault(part.get("y"), []).append(float(part.get("x", "")))
    assert len(lines) == 2 and max(map(max, lines.values())) <= width - 20
    assert all(b - a >= 50 for xs in lines.values() for a, b in pairwise(xs))
    assert all(0 <= float(rect.get("x", "0")) <= width for rect in parsed(drawn).iter("rect"))


def test_hostile_names_stay_text():
    period = Period(BEGIN, BEGIN + HOUR, HOUR)
    series = [Series(HOSTILE, [1], "s1"), Series("b", [2], "s2")]

    for drawn in (charts.columns(period, series, WIDE, HOSTILE), charts.heat(period, [(HOSTILE, [1])], WIDE, HOSTILE)):
        assert "<script" not in drawn and "\x1b" not in drawn and "\u202e" not in drawn
        drawn.encode()
        assert '"><script>alert(1)</script>' in parsed(drawn).get("aria-label", "")
