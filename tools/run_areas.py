"""Run the checks and the tests area by area, and say how long each took against its share.

The whole run has a time budget, and each area a share of it. A test that grows slow shows up
here, next to the area which pays for it, before it shows up as a slow build.

    python tools/run_areas.py lint types imports   the named make targets, then every area
    python tools/run_areas.py --nightly            the long cases which the run above leaves out
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Literal
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
LONGEST = 5  # cases named when an area is over its share
NO_TESTS = 5  # pytest's exit code when nothing was collected
Outcome = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True)
class Area:
    """Folders of tests which share one allowance of time."""

    name: str
    share: float  # minutes
    folders: tuple[str, ...]
    at_once: int = 1  # processes; more than one only where no test measures anything
    marks: str = ""  # which tests of these folders, where two areas share one

    def present(self) -> list[str]:
        return [folder for folder in self.folders if (ROOT / folder).is_dir()]


AREAS = (
    Area(
        "engine",
        6,
        (
            "tests/domain",
            "tests/store",
            "tests/runtime",
            "tests/testing",
            "tests/regressions",
            "tests/typing",
            "tests/project",
            "tests/cli",
        ),
        at_once=2,
        marks="not server",
    ),
    Area("servers", 7, ("tests/servers", "tests/store", "tests/regressions"), at_once=2, marks="server"),
    Area("object store", 6, ("tests/object",), at_once=2),
    Area("Spark", 8, ("tests/spark",)),
    Area("web", 5, ("tests/web",), at_once=2),
    Area("proof", 3, ("tests/proof",)),
)


@dataclass(frozen=True)
class Case:
    """One test, as pytest reported it."""

    name: str
    outcome: Outcome
    seconds: float


@dataclass(frozen=True)
class Report:
    """What became of one area."""

    name: str
    share: float  # minutes
    seconds: float
    exit_code: int
    cases: tuple[Case, ...]

    def count(self, outcome: Outcome) -> int:
        return sum(case.outcome == outcome for case in self.cases)

    @property
    def failed(self) -> int:
        """At least 1 when pytest was not content, even if it could name no failing test."""
        return max(self.count("failed"), int(self.exit_code != 0))

    @property
    def used(self) -> float:
        return self.seconds / (self.share * 60)


@dataclass(frozen=True)
class Check:
    """What became of one make target."""

    name: str
    seconds: float
    passed: bool


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Run the checks and the tests, area by area.")
    parser.add_argument("checks", nargs="*", metavar="TARGET", help="make targets to run and time first")
    parser.add_argument("--nightly", action="store_true", help="run the nightly cases instead of the others")
    options = parser.parse_args(arguments)

    checks = [run_check(name) for name in options.checks]
    areas = [area for area in AREAS if area.present()]
    strays = stray_files()
    if options.nightly:
        reports = [run_area(area, "nightly") for area in areas]
        # Most areas have no nightly case; here that is no failure.
        reports = [report for report in reports if report.exit_code != NO_TESTS]
        print_cases(reports)
    else:
        reports = [run_area(area, "not nightly") for area in areas]
        print_summary(checks, reports)
    for stray in strays:
        print(f"!!! IN NO AREA: {stray} is never run. Add its folder to AREAS in tools/run_areas.py.")
    failed = sum(report.failed for report in reports)
    print(f"{sum(report.count('passed') for report in reports)} passed, {failed} failed", flush=True)
    return int(bool(failed or strays or not all(check.passed for check in checks)))


def run_check(name: str) -> Check:
    title(name)
    began = perf_counter()
    command = [os.environ.get("MAKE", "make"), "--no-print-directory", name]
    done = subprocess.run(command, cwd=ROOT, check=False)
    return Check(name, perf_counter() - began, done.returncode == 0)


def run_area(area: Area, marks: str) -> Report:
    title(area.name)
    with tempfile.TemporaryDirectory() as scratch:
        results = Path(scratch, "results.xml")
        chosen = f"{marks} and {area.marks}" if area.marks else marks
        settings = ["-m", chosen, f"--junitxml={results}", "--continue-on-collection-errors"]
        if area.at_once > 1:
            settings += ["-n", str(area.at_once), "--dist", "worksteal", "-q"]
        command = [sys.executable, "-m", "pytest", *settings, *area.present()]
        began = perf_counter()
        done = subprocess.run(command, cwd=ROOT, check=False)
        seconds = perf_counter() - began
        # A crash of pytest itself may leave no file, or half of one; the exit code tells.
        try:
            cases = tuple(read_cases(results))
        except (FileNotFoundError, ElementTree.ParseError):
            cases = ()
    return Report(area.name, area.share, seconds, done.returncode, cases)


def read_cases(results: Path) -> Iterator[Case]:
    for case in ElementTree.parse(results).iter("testcase"):
        kinds = {child.tag for child in case}
        outcome: Outcome = "passed"
        if kinds & {"failure", "error"}:
            outcome = "failed"
        elif "skipped" in kinds:
            outcome = "skipped"
        name = "::".join(filter(None, (case.get("classname"), case.get("name"))))
        yield Case(name, outcome, float(case.get("time", 0)))


def stray_files() -> list[str]:
    """Test files in no area: nothing would ever run them."""
    folders = [ROOT / folder for area in AREAS for folder in area.folders]
    return [
        str(file.relative_to(ROOT))
        for file in sorted((ROOT / "tests").rglob("test_*.py"))
        if not any(file.is_relative_to(folder) for folder in folders)
    ]


def title(name: str) -> None:
    print(f"\n== {name} ".ljust(100, "="), flush=True)


def print_summary(checks: list[Check], reports: list[Report]) -> None:
    title("summary")
    print(row("area", "passed", "failed", "skipped", "time", "share", "used"))
    for check in checks:
        print(row(check.name, "yes" if check.passed else "", "" if check.passed else "YES", "", took(check)))
    for report in reports:
        counts = (str(report.count("passed")), str(report.failed), str(report.count("skipped")))
        share = f"{report.share * 60:.0f} s"
        print(row(report.name, *counts, took(report), share, f"{report.used:.0%}"))
    total = sum(check.seconds for check in checks) + sum(report.seconds for report in reports)
    print(row("all", time=f"{total:.1f} s"))
    print()
    for report in reports:
        if report.exit_code == NO_TESTS:
            print(f"!!! NO TESTS: the folders of {report.name} exist, but hold no test to run.")
        if report.used > 1:
            print(f"!!! OVER ITS SHARE: {report.name} took {report.used:.0%} of it. Its longest cases:")
            for case in sorted(report.cases, key=lambda case: -case.seconds)[:LONGEST]:
                print(f"!!!   {case.seconds:8.1f} s  {case.name}")
    for check in checks:
        if not check.passed:
            print(f"!!! CHECK FAILED: run `make {check.name}`.")


def print_cases(reports: list[Report]) -> None:
    title("nightly cases")
    for report in reports:
        for case in report.cases:
            print(f"{case.outcome:<8}{case.seconds:8.1f} s  {case.name}")


def row(
    name: str,
    passed: str = "",
    failed: str = "",
    skipped: str = "",
    time: str = "",
    share: str = "",
    used: str = "",
) -> str:
    return f"{name:<14}{passed:>8}{failed:>8}{skipped:>9}{time:>11}{share:>9}{used:>7}".rstrip()


def took(part: Check | Report) -> str:
    return f"{part.seconds:.1f} s"


if __name__ == "__main__":
    sys.exit(main())
