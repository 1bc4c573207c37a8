"""Charts: functions that take data and return SVG. Colours are CSS classes, which the style sheet defines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from millrace.spark.report import formats
from millrace.spark.report.period import DAY, Period
from millrace.spark.report.scales import Scale, linear, of_lengths, of_time
from millrace.spark.report.svg import Markup, join, number, tag

FULL, WIDE, NARROW = (
    1116,
    620,
    346,
)  # a page holds each chart in several widths, so that text does not shrink with the screen
HEIGHT = 196  # height of the data area, without the labels of the time axis
BETWEEN_TIMES = 62  # pixels that one label on the time axis needs
LINE_OF_TEXT = 13
LEVELS = 6  # shades of a heat map


@dataclass(frozen=True)
class Series:
    """Values over time, and the CSS class that colours them."""

    name: str
    values: Sequence[float | None]
    look: str


@dataclass(frozen=True)
class Area:
    """The rectangle of a chart in which the data is drawn, inside the axes."""

    left: float
    top: float
    right: float
    bottom: float

    @property
    def width(self) -> float:
        return self.right - self.left


def columns(period: Period, series: Sequence[Series], width: int, label: str) -> Markup:
    """Return a chart of counts over time, as stacked columns."""
    area = Area(46, 10, width - 4, HEIGHT)
    starts = period.starts
    sums = [sum(one.values[n] or 0 for one in series) for n in range(len(starts))]
    across = _across(period, area)
    up = linear(max(sums, default=0), area.bottom, area.top)
    step = area.width / len(starts)
    gap = 1.0 if step >= 4 else 0.0
    floor = [0.0] * len(starts)
    layers = []
    for one in series:
        path = []
        for n, value in enumerate(one.values):
            if value:
                low, high = up.at(floor[n]), up.at(floor[n] + value)
                floor[n] += value
                path.append(
                    f"M{number(area.left + n * step)} {number(low)}V{number(high)}h{number(step - gap)}V{number(low)}z"
                )
        if path:
            layers.append(tag("path", d="".join(path), class_=one.look))

    def tooltip(n: int) -> str:
        parts = [f"{one.name}: {formats.count(one.values[n] or 0)}" for one in reversed(series) if one.values[n]]
        total = [f"in all: {formats.count(sums[n])}"] if len(series) > 1 else []
        return "\n".join([formats.step_label(starts[n], period.step), *(parts or ["none"]), *total])

    return _svg(
        width,
        area.bottom + _foot(across),
        label,
        _grid(up, area),
        _times(across, area),
        *layers,
        _hover(area, len(starts), tooltip),
    )


def lines(period: Period, series: Sequence[Series], width: int, label: str) -> Markup:
    """Return a chart of durations over time, on a logarithmic axis. A line has a gap where nothing was measured."""
    area = Area(58, 10, width - 36, HEIGHT)
    starts = period.starts
    known = [value for one in series for value in one.values if value is not None]
    across = _across(period, area)
    up = of_lengths(min(known, default=1), max(known, default=1), area.bottom, area.top)
    step = area.width / len(starts)
    drawn = [
        part
        for one in series
        for part in _line(
            [None if v is None else (area.left + (n + 0.5) * step, up.at(v)) for n, v in enumerate(one.values)],
            one.look,
        )
    ]

    def tooltip(n: int) -> str:
        values = [(one.name, one.values[n]) for one in reversed(series)]
        parts = [f"{name}: {formats.length(value)}" for name, value in values if value is not None]
        return "\n".join([formats.step_label(starts[n], period.step), *(parts or ["nothing was measured"])])

    names = _end_labels(series, up, area)
    return _svg(
        width,
        area.bottom + _foot(across),
        label,
        _grid(up, area),
        _times(across, area),
        *drawn,
        names,
        _hover(area, len(starts), tooltip),
    )


def heat(period: Period, rows: Sequence[tuple[str, Sequence[float | None]]], width: int, label: str) -> Markup:
    """Return a heat map with one row for each name. Greater values have darker shades."""
    high, space = 20, 3
    area = Area(150 if width >= WIDE else 92, 4, width - 4, 4.0 + len(rows) * (high + space))
    starts = period.starts
    greatest = max((value or 0 for _, values in rows for value in values), default=0) or 1
    step = area.width / len(starts)
    drawn = []
    for row, (name, values) in enumerate(rows):
        y = area.top + row * (high + space)
        shown = _fitting(name, int(area.left / 6.4))
        drawn.append(tag("text", tag("title", name), shown, x=area.left - 8, y=y + high * 0.7, class_="name"))
        drawn.append(tag("rect", x=area.left, y=y, width=area.width, height=high, class_="track", rx=2))
        shades: dict[int, list[str]] = {}
        for n, value in enumerate(values):
            if value:
                shades.setdefault(level_of(value, greatest), []).append(
                    f"M{number(area.left + n * step)} {number(y)}h{number(step)}v{high}h{number(-step)}z"
                )
        drawn += [tag("path", d="".join(path), class_=f"h{level}") for level, path in sorted(shades.items())]

    def tooltip(n: int) -> str:
        parts = [f"{name}: {value:.2f}" for name, values in rows if (value := values[n])]
        return "\n".join([formats.step_label(starts[n], period.step), *(parts[:12] or ["no worker held a job"])])

    across = _across(period, area)
    hover = _hover(area, len(starts), tooltip)
    return _svg(width, area.bottom + _foot(across), label, _times(across, area), *drawn, hover)


def shifts(rows: Sequence[tuple[str, float, float, str]], width: int, label: str) -> Markup:
    """Return a chart with one row for each (name, earlier duration, later duration, class): a dot for each duration,
    and a line between them, on a logarithmic axis.
    """
    high = 26
    area = Area(170 if width >= WIDE else 110, 4, width - 16, 4.0 + len(rows) * high)
    values = [value for _, before, now, _ in rows for value in (before, now)]
    along = of_lengths(min(values, default=1), max(values, default=1), area.left + 8, area.right)
    drawn: list[Markup] = []
    for value, text in along.ticks:
        x = along.at(value)
        drawn.append(tag("line", x1=x, x2=x, y1=area.top, y2=area.bottom, class_="grid"))
        drawn.append(tag("text", text, x=x, y=area.bottom + 16, class_="time"))
    for n, (name, before, now, look) in enumerate(rows):
        y = area.top + (n + 0.5) * high
        title = tag("title", f"{name}: {formats.length(before)} before, {formats.length(now)} now")
        shown = _fitting(name, int(area.left / 6.4))
        drawn.append(tag("text", tag("title", name), shown, x=area.left - 8, y=y + 4, class_="name"))
        drawn.append(tag("line", x1=along.at(before), x2=along.at(now), y1=y, y2=y, class_=f"shift {look}"))
        drawn.append(tag("circle", title, cx=along.at(before), cy=y, r=5, class_="s0"))
        drawn.append(tag("circle", title, cx=along.at(now), cy=y, r=6, class_=look))
    return _svg(width, area.bottom + 22, label, *drawn)


def level_of(value: float, greatest: float) -> int:
    """Return the shade of a value, from 1 to LEVELS. Even the smallest value above 0 has a visible shade."""
    return max(1, min(LEVELS, -int(-value * LEVELS // greatest)))


def bar(share: float, look: str) -> Markup:
    """Return a horizontal bar for a table cell. `share` is the fraction of the cell's width that it fills."""
    filled = tag("rect", width=max(0.5, min(1.0, share) * 100) if share > 0 else 0, height=8, class_=look)
    track = tag("rect", width=100, height=8, class_="track")
    return tag("svg", track, filled, viewBox="0 0 100 8", preserveAspectRatio="none", class_="bar", aria_hidden="true")


def spark(values: Sequence[float | None], look: str) -> Markup:
    """Return a small column chart for a table cell."""
    greatest = max((value or 0 for value in values), default=0) or 1
    path = [f"M{n} 20v{number(-max(2.0, 19 * value / greatest))}h1V20z" for n, value in enumerate(values) if value]
    base = tag("rect", y=19.5, width=len(values), height=0.5, class_="track")
    drawn = tag("path", d="".join(path), class_=look)
    size = f"0 0 {max(1, len(values))} 20"
    return tag("svg", base, drawn, viewBox=size, preserveAspectRatio="none", class_="spark", aria_hidden="true")


def swatch(look: str) -> Markup:
    """Return a sample of a series' colour and stroke, for a legend."""
    if look.startswith("q"):
        mark = tag("path", d="M0 6H22", class_=look)
        return tag("svg", mark, viewBox="0 0 22 12", width=22, height=12, aria_hidden="true")
    mark = tag("rect", y=1, width=10, height=10, rx=2, class_=look)
    return tag("svg", mark, viewBox="0 0 10 12", width=10, height=12, aria_hidden="true")


# ── parts ─────────────────────────────────────────────────────────────────────────────────────


def _svg(width: int, height: float, label: str, *content: object) -> Markup:
    return tag("svg", *content, viewBox=f"0 0 {width} {number(height)}", role="img", aria_label=label, class_="chart")


def _across(period: Period, area: Area) -> Scale:
    starts = period.starts
    return of_time(starts[0], starts[-1] + period.step, area.left, area.right, int(area.width // BETWEEN_TIMES))


def _grid(up: Scale, area: Area) -> Markup:
    parts = []
    for value, text in up.ticks:
        y = up.at(value)
        parts.append(tag("line", x1=area.left, x2=area.right, y1=y, y2=y, class_="grid"))
        parts.append(tag("text", text, x=area.left - 7, y=y + 4, class_="value"))
    return tag("g", *parts)


def _times(across: Scale, area: Area) -> Markup:
    """Return the time axis with its labels. If the labels are times of day, a second line shows the date, below the
    first label and below each midnight.
    """
    parts = [tag("line", x1=area.left, x2=area.right, y1=area.bottom, y2=area.bottom, class_="axis")]
    dated = False
    for at, text in across.ticks:
        x = across.at(at)
        parts.append(tag("line", x1=x, x2=x, y1=area.bottom, y2=area.bottom + 4, class_="axis"))
        if x > area.right - 18:  # no room for its label
            continue
        place = {"x": x, "y": area.bottom + 17, "class_": "time"}
        parts.append(tag("text", text, **place))
        if ":" in text and (not dated or int(at) % DAY == 0):
            parts.append(tag("text", formats.date(int(at)), **{**place, "y": area.bottom + 30}))
            dated = True
    return tag("g", *parts)


def _foot(across: Scale) -> int:
    """Return the height of the labels of the time axis. If the labels are times of day, this includes a second line for
    dates.
    """
    return 34 if any(":" in text for _, text in across.ticks) else 22


def _line(points: Sequence[tuple[float, float] | None], look: str) -> list[Markup]:
    path: list[str] = []
    alone: list[Markup] = []
    for n, point in enumerate(points):
        if point is None:
            continue
        before = points[n - 1] if n else None
        after = points[n + 1] if n + 1 < len(points) else None
        path.append(f"{'M' if before is None else 'L'}{number(point[0])} {number(point[1])}")
        if before is None and after is None:
            alone.append(tag("circle", cx=point[0], cy=point[1], r=2.5, class_=f"dot {look}"))
    return [tag("path", d="".join(path), class_=look), *alone] if path else alone


def _end_labels(series: Sequence[Series], up: Scale, area: Area) -> Markup:
    """Return the names of the lines, each at the end of its line. Names that would overlap are moved apart."""
    ends = []
    for one in series:
        last = next((value for value in reversed(one.values) if value is not None), None)
        if last is not None:
            ends.append((up.at(last) + 4, one.name))
    parts: list[Markup] = []
    lowest = area.bottom + 4
    for y, name in sorted(ends, key=lambda end: -round(end[0] / LINE_OF_TEXT)):
        lowest = min(y, lowest)
        parts.append(tag("text", name, x=area.right + 5, y=lowest, class_="end"))
        lowest -= LINE_OF_TEXT
    return join(parts)


def _hover(area: Area, steps: int, tooltip: Callable[[int], str]) -> Markup:
    """Return invisible columns with tooltips, one for each interval of the time axis."""
    step = area.width / steps
    high = area.bottom - area.top
    return tag(
        "g",
        *(
            tag("rect", tag("title", tooltip(n)), x=area.left + n * step, y=area.top, width=step, height=high)
            for n in range(steps)
        ),
        class_="hover",
    )


def _fitting(text: str, letters: int) -> str:
    return text if len(text) <= letters else text[: max(1, letters - 1)] + "…"
