"""Prints line and branch coverage per package, from `coverage json`.

python tools/coverage_table.py .coverage.json
"""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict
from pathlib import Path

FIGURES = ("num_statements", "covered_lines", "num_branches", "covered_branches")


def main(file: str) -> int:
    packages: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for path, found in json.loads(Path(file).read_text(encoding="utf-8"))["files"].items():
        figures = {name: found["summary"][name] for name in FIGURES}
        for package in (package_of(path), "all"):
            packages[package].update(figures)
    print(f"{'package':<28}{'lines':>8}{'run':>8}{'branches':>10}{'run':>8}")
    for package in sorted(packages, key=lambda name: (name == "all", name)):
        lines, run, branches, taken = (packages[package][name] for name in FIGURES)
        print(f"{package:<28}{lines:>8}{share(run, lines):>8}{branches:>10}{share(taken, branches):>8}")
    return 0


def package_of(path: str) -> str:
    """The package of a file: two levels below store, such as `store/redis`; one level elsewhere."""
    inside = Path(path).parts
    inside = inside[inside.index("millrace") + 1 : -1]
    return "/".join(inside[: 2 if inside[:1] == ("store",) else 1]) or "millrace"


def share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "–"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
