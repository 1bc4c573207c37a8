"""The figures of a run as a picture: a panel per figure, a bar per subject, the longest first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

PANELS = {
    "enqueue": ("single enqueues per second, each awaited", "{:,.0f}"),
    "bulk": ("jobs enqueued in bulk per second", "{:,.0f}"),
    "process": ("jobs processed per second by one worker process", "{:,.0f}"),
    "p50": ("round trip, median in milliseconds: shorter is better", "{:,.2f}"),
}
WIDTH, NAMES, VALUES = 840, 150, 90  # of the picture, of the names to the left, of the figures to the right
HEAD, BAR, GAP, FOOT, TOP = 34, 16, 6, 26, 52
STYLE = """
    svg { font-family: ui-sans-serif, system-ui, "Segoe UI", "Helvetica Neue", "DejaVu Sans", sans-serif; }
    .paper { fill: #fbfaf7; stroke: #dedad0; }
    .ink { fill: #23272e; }
    .soft { fill: #5d6673; }
    .title { font-size: 19px; font-weight: 700; }
    .panel { font-size: 14px; font-weight: 600; }
    .name, .value { font-size: 13px; }
    .ours-name { font-weight: 700; }
    .ours { fill: #2f77bd; }
    .peer { fill: #b9b4a6; }
    .floor { fill: none; stroke: #8b93a0; stroke-width: 1.3; stroke-dasharray: 3 3; }
    @media (prefers-color-scheme: dark) {
      .paper { fill: #14171c; stroke: #2c323b; }
      .ink { fill: #eceff3; }
      .soft { fill: #a6afbc; }
      .ours { fill: #5aa0e6; }
      .peer { fill: #4a515c; }
      .floor { stroke: #6d7684; }
    }"""


def picture(store: str, found: Mapping[str, Any]) -> str:
    subjects = {"millrace": found["millrace"], **found["peers"], "bare client": found["floors"]["floor"]}
    drawn: list[str] = []
    y = TOP
    for key, (words, form) in PANELS.items():
        rows = [(name.removesuffix(f"-{store}"), figures[key]) for name, figures in subjects.items() if key in figures]
        rows.sort(key=lambda row: row[1], reverse=key != "p50")
        drawn.append(text(24, y + 18, "ink panel", words))
        drawn += bars(rows, y + HEAD, form)
        y += HEAD + len(rows) * (BAR + GAP) + FOOT
    return "\n".join([*head(store, y), *drawn, "</svg>", ""])


def bars(rows: Sequence[tuple[str, float]], top: float, form: str) -> list[str]:
    longest = max(value for _, value in rows)
    room = WIDTH - NAMES - VALUES - 24
    drawn: list[str] = []
    for number, (name, value) in enumerate(rows):
        y = top + number * (BAR + GAP)
        look = {"millrace": "ours", "bare client": "floor"}.get(name, "peer")
        width = max(1.0, room * value / longest)
        mine = " ours-name" if look == "ours" else ""
        drawn += [
            text(NAMES - 10, y + 13, f"ink name{mine}", name, anchor="end"),
            f'  <rect class="{look}" x="{NAMES}" y="{y:g}" width="{width:.1f}" height="{BAR}" rx="2"/>',
            text(NAMES + width + 8, y + 13, f"soft value{mine}", form.format(value)),
        ]
    return drawn


def head(store: str, height: float) -> list[str]:
    name = {"redis": "Redis", "postgres": "PostgreSQL", "sqlite": "SQLite", "memory": "memory"}[store]
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" role="img" aria-labelledby="title">',
        f'  <title id="title">Millrace and its peers on {name}</title>',
        f"  <style>{STYLE}\n  </style>",
        f'  <rect class="paper" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1:g}" rx="10"/>',
        text(24, 34, "ink title", f"Millrace and its peers on {name}"),
    ]


def text(x: float, y: float, look: str, words: str, anchor: str = "start") -> str:
    return f'  <text class="{look}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(words)}</text>'
