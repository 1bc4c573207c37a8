"""Run the checks and the tests area by area, and compare the time of each with its share.

The whole run has a time budget, and each area a share of it. A test that becomes slow is reported with its area.
Areas run side by side as long as processes are free; the output of each area is shown as a whole.

    python tools/run_areas.py lint types imports   the given make targets, then every area
    python tools/run_areas.py --fast lint types    the given targets, then the most useful tests of a few minutes
    python tools/run_areas.py --nightly            the long cases that the run above leaves out
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, sleep
from typing import Literal
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
LONGEST = 5  # number of cases listed if an area exceeds its share
NO_TESTS = 5  # pytest's exit code if no test was collected
# The number of concurrent test processes. Two of them leave a quarter of two cores idle, because tests wait for servers
# and for other processes. Four of them take longer than three: then the processor is the limit.
PROCESSES = 3
Outcome = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True)
class Area:
    """Test folders that share a time budget."""

    name: str
    share: float  # minutes
    folders: tuple[str, ...]
    at_once: int = 1  # processes
    marks: str = ""  # which tests of these folders, if two areas share a folder
    names: str = ""  # which of these tests, by name

    def present(self) -> list[str]:
        return [folder for folder in self.folders if (ROOT / folder).exists()]


# In the order of their start: an area of two processes runs beside one of one process.
AREAS = (
    Area(
        "engine",
        9,
        (
            "tests/domain",
            "tests/store",
            "tests/app",
            "tests/worker",
            "tests/views",
            "tests/testing",
            "tests/regressions",
            "tests/cli",
        ),
        at_once=2,
        marks="not server",
    ),
    Area("Spark", 14, ("tests/spark",)),
    Area("servers", 9, ("tests/servers", "tests/store", "tests/regressions"), at_once=2, marks="server"),
    Area("web", 4, ("tests/web",)),
    Area("object store", 4, ("tests/object",), at_once=2),
    Area("proof", 6, ("tests/proof",)),
    Area("integrations", 2, ("tests/contrib", "tests/examples")),  # one process, because it installs environments
    Area("project", 2, ("tests/project", "tests/typing")),
)


FAST = (
    Area(
        "unit",
        2,
        ("tests/domain", "tests/app", "tests/views", "tests/worker"),
        at_once=2,
        marks="not slow and not server",
    ),
    Area(
        "conformance",
        1,
        ("tests/store/test_conformance.py",),
        at_once=2,
        marks="not slow and not server",
        names="memory or sqlite",
    ),
)


@dataclass(frozen=True)
class Case:
    """One test, as pytest reported it."""

    name: str
    outcome: Outcome
    seconds: float


@dataclass(frozen=True)
class Report:
    """The outcome of one area."""

    name: str
    share: float  # minutes
    seconds: float
    processor: float  # seconds of processor time
    exit_code: int
    cases: tuple[Case, ...]

    def count(self, outcome: Outcome) -> int:
        return sum(case.outcome == outcome for case in self.cases)

    @property
    def failed(self) -> int:
        """Return the number of failures. It is at least 1 if pytest failed, even without a failing test."""
        return max(self.count("failed"), int(self.exit_code != 0))

    @property
    def used(self) -> float:
        return self.seconds / (self.share * 60)


@dataclass(frozen=True)
class Check:
    """The outcome of one make target."""

    name: str
    seconds: float
    passed: bool


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Run the checks and the tests, area by area.")
    parser.add_argument("checks", nargs="*", metavar="TARGET", help="make targets to run and time first")
    parser.add_argument("--nightly", action="store_true", help="run the nightly cases instead of the others")
    parser.add_argument("--fast", action="store_true", help="run the most useful tests of a few minutes")
    options = parser.parse_args(arguments)

    began = perf_counter()
    checks = [run_check(name) for name in options.checks]
    areas = [area for area in (FAST if options.fast else AREAS) if area.present()]
    strays = stray_files()
    if options.nightly:
        reports = run_areas(areas, "nightly")
        # Most areas have no nightly case, which is not a failure here.
        reports = [report for report in reports if report.exit_code != NO_TESTS]
        print_cases(reports)
    else:
        reports = run_areas(areas, "not nightly")
        print_summary(checks, reports, perf_counter() - began)
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


def run_areas(areas: Sequence[Area], marks: str) -> list[Report]:
    """Start the areas as processes become free, and show the output of one area after the other."""
    with tempfile.TemporaryDirectory() as scratch:
        runs = [AreaRun(area, marks, Path(scratch, area.name)) for area in areas]
        threading.Thread(target=start_all, args=(runs,), daemon=True).start()
        try:
            return [run.follow() for run in runs]
        finally:
            for run in runs:
                run.interrupt()


def start_all(runs: Sequence["AreaRun"]) -> None:
    """Start the first area that the free processes suffice for, until all were started."""
    left = list(runs)
    free, changed = PROCESSES, threading.Condition()

    def ended(area: Area) -> None:
        nonlocal free
        with changed:
            free += area.at_once
            changed.notify()

    while left:
        with changed:
            while (run := next((run for run in left if run.area.at_once <= free), None)) is None:
                changed.wait()
            free -= run.area.at_once
        left.remove(run)
        run.start(ended)


class AreaRun:
    """A run of pytest over the folders of one area, in a separate process."""

    def __init__(self, area: Area, marks: str, folder: Path) -> None:
        self.area = area
        self._marks = f"{marks} and {area.marks}" if area.marks else marks
        self._results, self._output = folder / "results.xml", folder / "output"
        self._report: Future[Report] = Future()
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir()
        self._output.touch()

    def start(self, ended: Callable[[Area], None]) -> None:
        def run() -> None:
            try:
                self._report.set_result(self._run())
            except BaseException as error:
                self._report.set_exception(error)
            ended(self.area)

        threading.Thread(target=run, daemon=True).start()

    def follow(self) -> Report:
        """Show the output until the area has ended, and return the report."""
        title(self.area.name)
        with self._output.open("rb") as output:
            while True:
                done = self._report.done()
                sys.stdout.buffer.write(output.read())
                sys.stdout.flush()
                if done:
                    return self._report.result()
                sleep(0.2)

    def interrupt(self) -> None:
        """Interrupt pytest, if it still runs, so that it stops its workers and servers."""
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(signal.SIGINT)

    def _run(self) -> Report:
        began = perf_counter()
        with self._output.open("wb") as output:
            process = subprocess.Popen(self._command(), cwd=ROOT, stdout=output, stderr=subprocess.STDOUT)
            self._process = process
            _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        seconds = perf_counter() - began
        # A crash of pytest may leave no file, or an incomplete one. The exit code then counts.
        try:
            cases = tuple(read_cases(self._results))
        except (FileNotFoundError, ElementTree.ParseError):
            cases = ()
        processor = usage.ru_utime + usage.ru_stime
        return Report(self.area.name, self.area.share, seconds, processor, process.returncode, cases)

    def _command(self) -> list[str]:
        area = self.area
        settings = ["-m", self._marks, f"--junitxml={self._results}", "--continue-on-collection-errors", "-q"]
        if area.names:
            settings += ["-k", area.names]
        if area.at_once > 1:
            settings += ["-n", str(area.at_once), "--dist", "worksteal"]
        return [sys.executable, "-m", "pytest", *settings, *area.present()]


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
    """Return the test files that belong to no area and would never run."""
    folders = [ROOT / folder for area in AREAS for folder in area.folders]
    return [
        str(file.relative_to(ROOT))
        for file in sorted((ROOT / "tests").rglob("test_*.py"))
        if not any(file.is_relative_to(folder) for folder in folders)
    ]


def title(name: str) -> None:
    print(f"\n== {name} ".ljust(100, "="), flush=True)


def print_summary(checks: list[Check], reports: list[Report], seconds: float) -> None:
    title("summary")
    print(row("area", "passed", "failed", "skipped", "time", "share", "used", "processor"))
    for check in checks:
        print(row(check.name, "yes" if check.passed else "", "" if check.passed else "YES", "", took(check)))
    for report in reports:
        counts = (str(report.count("passed")), str(report.failed), str(report.count("skipped")))
        share = f"{report.share * 60:.0f} s"
        print(row(report.name, *counts, took(report), share, f"{report.used:.0%}", f"{report.processor:.0f} s"))
    print(row("all", time=f"{seconds:.1f} s"))
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
    processor: str = "",
) -> str:
    return f"{name:<14}{passed:>8}{failed:>8}{skipped:>9}{time:>11}{share:>9}{used:>7}{processor:>11}".rstrip()


def took(part: Check | Report) -> str:
    return f"{part.seconds:.1f} s"


if __name__ == "__main__":
    sys.exit(main())
