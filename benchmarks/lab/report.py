"""What the rounds come to: medians, ratios against the best peer, shares of the floor, and tables to read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.lab.measure import medians

Figures = dict[str, Any]
RATES = ("enqueue", "bulk", "process")
RATE, MICROSECONDS = "{:,.0f}", "{:,.0f}"
SPEED = {
    "enqueue": ("enqueue/s", RATE),
    "enqueue_10": ("10 callers/s", RATE),
    "enqueue_100": ("100 callers/s", RATE),
    "threads_8": ("8 threads/s", RATE),
    "bulk": ("bulk/s", RATE),
    "process": ("process/s", RATE),
    "process_default": ("default settings/s", RATE),
    "process_def": ("def handlers/s", RATE),
    "p50": ("p50 ms", "{:.2f}"),
    "p99": ("p99 ms", "{:.2f}"),
}
COST = {
    "enqueue_cpu": ("enqueue, client µs", MICROSECONDS),
    "enqueue_server": ("enqueue, server µs", MICROSECONDS),
    "process_cpu": ("process, worker µs", MICROSECONDS),
    "process_server": ("process, server µs", MICROSECONDS),
    "idle_cpu": ("idle CPU %", "{:.2f}"),
    "rss": ("RSS MiB", "{:.0f}"),
}
WORDS = ("delivery", "durability", "durable", "handlers", "error")
RATIOS = {"ratio": "of any durability", "ratio_same_durability": "of the same durability"}
PROMISE = "guarantees"
Rows = list[list[str]]


def summary(rounds: Sequence[Figures]) -> Figures:
    """The median of each figure; the words of the last round."""
    numbers = [{name: value for name, value in one.items() if name not in WORDS} for one in rounds]
    words = {name: value for name, value in rounds[-1].items() if name in WORDS}
    return medians(numbers) | words


def result(figures: Mapping[str, Figures], run: Mapping[str, Any]) -> dict[str, Any]:
    """A ratio above 1 means that Millrace leads the best peer; a floor share of 1 means: as fast as the floor."""
    ours = figures["millrace"]
    floors = {name: one for name, one in figures.items() if name.startswith("floor")}
    peers = {name: one for name, one in figures.items() if name != "millrace" and name not in floors}
    alike = {name: one for name, one in peers.items() if one.get("durable") == ours["durable"]}
    best = {name: max(one[name] for one in floors.values() if name in one) for name in RATES}
    return {
        "run": dict(run),
        "millrace": ours,
        "peers": peers,
        "floors": floors,
        "ratio": ratios(ours, peers),
        "ratio_same_durability": ratios(ours, alike),
        "floor_share": {name: ours[name] / best[name] for name in RATES},
    }


def ratios(ours: Figures, peers: Mapping[str, Figures]) -> dict[str, float | None]:
    found: dict[str, float | None] = {}
    for name in (*RATES, "p50"):
        theirs = [figures[name] for figures in peers.values() if name in figures]
        if not theirs:
            found[name] = None
        else:
            found[name] = min(theirs) / ours[name] if name == "p50" else ours[name] / max(theirs)
    return found


def table(found: Mapping[str, Any]) -> str:
    """All tables, for a terminal."""
    return "\n\n".join([run_line(found["run"]), *(aligned(rows) for rows in tables(found)), shares(found)])


def markdown(found: Mapping[str, Any]) -> str:
    """All tables, for a document."""
    parts = [run_line(found["run"])]
    for rows in tables(found):
        rows.insert(1, ["---", *("---" if title == PROMISE else "--:" for title in rows[0][1:])])
        parts.append("\n".join("| " + " | ".join(cells) + " |" for cells in rows))
    return "\n\n".join([*parts, shares(found)])


def tables(found: Mapping[str, Any]) -> list[Rows]:
    subjects = {"millrace": found["millrace"], **found["peers"], **found["floors"]}
    parts = [figure_rows(subjects, SPEED), figure_rows(subjects, COST)]
    if found["peers"]:
        names = ["Millrace against the fastest other queue", *RATES, "p50"]
        parts.append([names, *(ratio_row(found, key, words) for key, words in RATIOS.items())])
    parts.append([["", PROMISE], *([name, promise(figures)] for name, figures in subjects.items())])
    return parts


def figure_rows(subjects: Mapping[str, Figures], columns: Mapping[str, tuple[str, str]]) -> Rows:
    """A row per subject; a column that no subject has is left out."""
    shown = {key: column for key, column in columns.items() if any(key in one for one in subjects.values())}
    rows = [["", *(title for title, _ in shown.values())]]
    for name, figures in subjects.items():
        rows.append([name, *(form.format(figures[key]) if key in figures else "–" for key, (_, form) in shown.items())])
    return rows


def promise(figures: Figures) -> str:
    if "error" in figures:
        return str(figures["error"]).splitlines()[0]
    return "; ".join(figures[word] for word in ("delivery", "durability") if word in figures)


def ratio_row(found: Mapping[str, Any], key: str, words: str) -> list[str]:
    return [words, *("–" if value is None else f"{value:.2f}" for value in found[key].values())]


def shares(found: Mapping[str, Any]) -> str:
    return "Of the floor's speed: " + ", ".join(f"{name} {share:.0%}" for name, share in found["floor_share"].items())


def run_line(run: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in run["versions"].items())
    return (
        f"Commit `{run['commit']}`, {run['date']}, load {run['load']:.1f} before the run, {run['cores']} cores, "
        f"{run['jobs']:,} jobs, medians of {run['rounds']} rounds. {versions}."
    )


def aligned(rows: Rows) -> str:
    """Names to the left, figures to the right, words to the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *rest in rows:
        cells = rest if len(rest) == 1 else [cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *cells]).rstrip())
    return "\n".join(lines)
