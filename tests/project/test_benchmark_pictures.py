"""The picture of a comparison says what the figures say."""

import xml.etree.ElementTree as xml

from benchmarks.lab.plot import picture

SVG = "{http://www.w3.org/2000/svg}"
FOUND = {
    "millrace": {"enqueue": 2_000.0, "bulk": 80_000.0, "process": 20_000.0, "p50": 1.5},
    "peers": {
        "slow": {"enqueue": 1_000.0, "bulk": 4_000.0, "process": 500.0, "p50": 10.0},
        "broken <&>": {"error": "exit 1"},
        "no trips": {"enqueue": 3_000.0, "bulk": 5_000.0, "process": 10_000.0},
    },
    "floors": {"floor": {"enqueue": 4_000.0, "bulk": 100_000.0, "process": 40_000.0}},
}


def panels() -> list[list[tuple[str, str, float]]]:
    """Per panel (name, figure, length of the bar), from top to bottom."""
    root = xml.fromstring(picture("redis", FOUND))
    found: list[list[tuple[str, str, float]]] = []
    names: list[str] = []
    lengths: list[float] = []
    for part in root:
        look = (part.get("class") or "").split()
        if "panel" in look:
            found.append([])
        elif "name" in look:
            names.append(part.text or "")
        elif part.tag == f"{SVG}rect" and "paper" not in look:
            lengths.append(float(part.get("width") or 0))
        elif "value" in look:
            found[-1].append((names[-1], part.text or "", lengths[-1]))
    return found


def test_a_bar_is_as_long_as_its_figure_and_the_best_comes_first():
    _, bulk, process, trips = panels()

    assert [(name, figure) for name, figure, _ in process] == [
        ("bare client", "40,000"),
        ("millrace", "20,000"),
        ("no trips", "10,000"),
        ("slow", "500"),
    ]
    longest = process[0][2]
    assert [round(length / longest, 2) for _, _, length in process] == [1.0, 0.5, 0.25, 0.01]
    assert [name for name, _, _ in bulk] == ["bare client", "millrace", "no trips", "slow"]
    assert [(name, figure) for name, figure, _ in trips] == [("millrace", "1.50"), ("slow", "10.00")]


def test_who_failed_has_no_bar():
    assert all(not name.startswith("broken") for panel in panels() for name, _, _ in panel)
