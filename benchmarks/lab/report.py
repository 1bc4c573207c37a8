"""What the rounds come to: medians, ratios against the best peer, shares of the floor, and a table to read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.lab.measure import medians

Figures = dict[str, Any]
RATES = ("enqueue", "bulk", "process")
COLUMNS = {
    "enqueue": ("enqueue/s", "{:,.0f}"),
    "bulk": ("bulk/s", "{:,.0f}"),
    "process": ("process/s", "{:,.0f}"),
    "p50": ("p50 ms", "{:.2f}"),
    "p99": ("p99 ms", "{:.2f}"),
    "idle_cpu": ("idle CPU %", "{:.2f}"),
    "rss": ("RSS MiB", "{:.0f}"),
}


def summary(rounds: Sequence[Figures]) -> Figures:
    """The median of each figure; the words of the last round."""
    numbers = [{name: value for name, value in one.items() if name in COLUMNS} for one in rounds]
    words = {name: value for name, value in rounds[-1].items() if name not in COLUMNS}
    return medians(numbers) | words


def result(ours: Figures, peers: Mapping[str, Figures], floor: Figures) -> dict[str, Any]:
    """A ratio above 1 means that Millrace leads the best peer; a floor share of 1 means: as fast as the bare client."""
    alike = {name: figures for name, figures in peers.items() if figures.get("durable") == ours["durable"]}
    return {
        "millrace": ours,
        "peers": dict(peers),
        "floor": floor,
        "ratio": ratios(ours, peers),
        "ratio_same_durability": ratios(ours, alike),
        "floor_share": {name: ours[name] / floor[name] for name in RATES},
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
    subjects = {"millrace": found["millrace"], **found["peers"], "floor": found["floor"]}
    rows = [["", *(title for title, _ in COLUMNS.values()), "what is promised"]]
    rows += [row(name, figures) for name, figures in subjects.items()]
    parts = [aligned(rows)]
    if found["peers"]:
        parts.append("Millrace against the best peer, above 1 it leads:")
        parts.append(aligned([["", *RATES, "p50"], *(ratio_row(found, key, words) for key, words in RATIOS.items())]))
    shares = ", ".join(f"{name} {share:.0%}" for name, share in found["floor_share"].items())
    parts.append(f"Of the bare client's speed: {shares}")
    return "\n\n".join(parts)


def markdown(found: Mapping[str, Any]) -> str:
    """The same table for a document."""
    subjects = {"**millrace**": found["millrace"], **found["peers"], "floor": found["floor"]}
    rows = [["", *(title for title, _ in COLUMNS.values()), "what is promised"]]
    rows.append(["---", *("--:" for _ in COLUMNS), "---"])
    rows += [row(name, figures) for name, figures in subjects.items()]
    lines = ["| " + " | ".join(cells) + " |" for cells in rows]
    lines += ["", "| Millrace against the best peer | enqueue | bulk | process | p50 |", "|---|--:|--:|--:|--:|"]
    lines += ["| " + " | ".join(ratio_row(found, key, words)) + " |" for key, words in RATIOS.items()]
    shares = ", ".join(f"{name} {100 * share:.0f} %" for name, share in found["floor_share"].items())
    return "\n".join([*lines, "", f"Of the floor's speed: {shares}. Load before the run: {found['load']:.1f}."])


RATIOS = {"ratio": "of any durability", "ratio_same_durability": "of the same durability"}


def row(name: str, figures: Figures) -> list[str]:
    if "error" in figures:
        return [name, *("" for _ in COLUMNS), figures["error"].splitlines()[0]]
    cells = [form.format(figures[key]) if key in figures else "–" for key, (_, form) in COLUMNS.items()]
    return [name, *cells, "; ".join(figures[word] for word in ("delivery", "durability") if word in figures)]


def ratio_row(found: Mapping[str, Any], key: str, words: str) -> list[str]:
    return [words, *("–" if value is None else f"{value:.2f}" for value in found[key].values())]


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Names to the left, figures to the right, and a last column of words to the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for cells in rows:
        first, *rest = (cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
        if len(cells) == len(COLUMNS) + 2:
            rest[-1] = cells[-1]
        lines.append("  ".join([cells[0].ljust(len(first)), *rest]).rstrip())
    return "\n".join(lines)
