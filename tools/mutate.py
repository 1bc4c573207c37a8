"""Negate conditions one at a time, run the tests on each mutant, and say which mutants nobody noticed.

A line that tests run through is not yet a line that tests hold to account. Each mutant is a copy of the project with
one condition turned round. A mutant that no test notices is a survivor: it needs a test, or a reason.

    python tools/mutate.py                                the rules, in src/millrace/domain
    python tools/mutate.py --only ledger.py --limit 20    a part of them
    python tools/mutate.py src/millrace/store             the conditions in .sql files below a folder
    python tools/mutate.py --resume                       go on where the last run was stopped
"""

import argparse
import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"
RULES = (
    "decide",
    "transition",
    "ledger",
    "step",
    "admission",
    "limits",
    "order",
    "operate",
    "upkeep",
    "dead",
    "retry",
    "plain",
    "scheduling",
)
SQL_WORD = re.compile(r"--[^\n]*|'[^']*'|[A-Za-z_]+|[();]|\S")
BEGINS = frozenset({"WHERE", "AND", "OR", "ON"})
ENDS = BEGINS | {
    *("ORDER", "GROUP", "LIMIT", "RETURNING", "UNION", "JOIN", "LEFT", "INNER", "CROSS"),
    *("SET", "THEN", "ELSE", "WINDOW", "HAVING"),
}
NO_CONDITION = frozenset({"CONFLICT", "REPLACE"})  # ON CONFLICT, INSERT OR REPLACE


@dataclass(frozen=True)
class Mutant:
    """One condition to turn round: the `number`-th of its file."""

    file: str  # below src
    number: int
    line: int
    what: str


@dataclass(frozen=True)
class Verdict:
    mutant: Mutant
    fate: str  # killed, timeout, survived
    by: str
    seconds: float


class Negate(ast.NodeTransformer):
    """Visits every condition of a file in a fixed order; negates the one that is wanted, if any."""

    def __init__(self, wanted: int | None = None) -> None:
        self.wanted = wanted
        self.found: list[tuple[int, str]] = []

    def condition(self, node: ast.expr) -> ast.expr:
        self.found.append((node.lineno, ast.unparse(node)))
        if len(self.found) - 1 != self.wanted:
            return node
        return ast.copy_location(ast.UnaryOp(ast.Not(), node), node)

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        match node:
            case ast.Compare():
                return self.condition(node)
            case ast.If() | ast.While() | ast.IfExp():
                node.test = self.unless_seen(node.test)
            case ast.comprehension():
                node.ifs = [self.unless_seen(test) for test in node.ifs]
            case ast.BoolOp():
                node.values = [self.unless_seen(value) for value in node.values]
            case ast.match_case(guard=ast.expr() as guard):
                node.guard = self.unless_seen(guard)
        return node

    def unless_seen(self, node: ast.expr) -> ast.expr:
        """A comparison has had its turn wherever it stands; `x or ""` is a default, not a condition."""
        plain = node.operand if isinstance(node, ast.UnaryOp) else node
        return node if isinstance(plain, ast.Compare | ast.Constant) else self.condition(node)

    def visit_Assert(self, node: ast.Assert) -> ast.Assert:
        """An assertion says what cannot be; turning it round fails at once and shows nothing."""
        return node


def mutants_of(file: Path) -> Iterator[Mutant]:
    name = str(file.relative_to(SOURCE))
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".sql":
        for number, (start, end) in enumerate(sql_conditions(text)):
            yield Mutant(name, number, text.count("\n", 0, start) + 1, " ".join(text[start:end].split()))
        return
    visitor = Negate()
    visitor.visit(ast.parse(text))
    for number, (line, what) in enumerate(visitor.found):
        yield Mutant(name, number, line, what)


def sql_conditions(text: str) -> list[tuple[int, int]]:
    """Where conditions stand: from WHERE, AND, OR or ON to the next word that ends one, at the same depth."""
    found: list[tuple[int, int]] = []
    begun: list[int | None] = [None]  # by depth of parentheses
    between = False

    def end(at: int) -> None:
        start = begun[-1]
        if start is not None and text[start:at].strip():
            found.append((start + len(text[start:at]) - len(text[start:at].lstrip()), len(text[:at].rstrip())))
        begun[-1] = None

    for match in SQL_WORD.finditer(text):
        word = match[0].upper()
        if word == "(":
            begun.append(None)
        elif word == ")" and len(begun) > 1:
            end(match.start())
            begun.pop()
        elif word == "BETWEEN":
            between = True
        elif word == "AND" and between:
            between = False
        elif word in ENDS or word == ";" or word.startswith("--"):
            end(match.start())
            begun[-1] = match.end() if word in BEGINS else None
        elif word in NO_CONDITION:
            begun[-1] = None
    return sorted(found)


def mutated(text: str, mutant: Mutant) -> str:
    if mutant.file.endswith(".sql"):
        start, end = sql_conditions(text)[mutant.number]
        return f"{text[:start]}NOT ({text[start:end]}){text[end:]}"
    tree = Negate(mutant.number).visit(ast.parse(text))
    return ast.unparse(ast.fix_missing_locations(tree))


class Bench:
    """A copy of the project per worker, in which one file at a time is exchanged while others edit the original."""

    def __init__(self, folder: Path, timeout: float, examples: int) -> None:
        self.folder = folder
        self.timeout = timeout
        self.environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(folder / "src"), str(folder)]),
            "PYTHONDONTWRITEBYTECODE": "1",
            "MILLRACE_MODEL_EXAMPLES": str(examples),
        }
        for part in ("src", "tests"):
            shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", folder)

    def call(self, command: list[str], timeout: float) -> subprocess.CompletedProcess[str]:
        at, env = self.folder, self.environment
        return subprocess.run(command, cwd=at, env=env, capture_output=True, text=True, timeout=timeout, check=False)

    def judge(self, mutant: Mutant) -> Verdict:
        began = perf_counter()
        target = self.folder / "src" / mutant.file
        original = target.read_text(encoding="utf-8")
        target.write_text(mutated(original, mutant), encoding="utf-8")
        try:
            fate, by = self.run_tests(mutant.file)
        finally:
            target.write_text(original, encoding="utf-8")
        return Verdict(mutant, fate, by, round(perf_counter() - began, 1))

    def run_tests(self, file: str) -> tuple[str, str]:
        """The quick tests first; what survives those meets the model."""
        parts = Path(file).parts
        store = parts[2] if parts[1] == "store" and len(parts) > 3 else "memory"
        of_this_store = [(f"tests/store/{store}", "not nightly and not slow", "")] if file.endswith(".sql") else []
        for tests, marks, chosen in (
            ("tests/store/test_conformance.py", "not nightly", store),
            *of_this_store,
            ("tests/domain", "not nightly", "not heap"),
            ("tests/store/test_model.py", "slow and not nightly", store),
        ):
            if (found := self._run(tests, marks, chosen))[0] != "survived":
                return found
        return "survived", ""

    def _run(self, tests: str, marks: str, chosen: str) -> tuple[str, str]:
        """A kill counts once it repeats: a test that fails now and then by itself would kill what it never ran."""
        settings = ["-m", marks, "-k", chosen]
        while True:
            fate, by = self._pytest([*settings, tests])
            if fate != "killed" or "::" not in by or self._pytest([by])[0] != "survived":
                return fate, by
            print(f"not repeated: {by}", flush=True)
            settings += ["--deselect", by]

    def _pytest(self, arguments: list[str]) -> tuple[str, str]:
        settings = ["-x", "-q", "-p", "no:cacheprovider", "--hypothesis-seed=0", "--no-header", "--tb=no"]
        try:
            done = self.call([sys.executable, "-m", "pytest", *settings, *arguments], self.timeout)
        except subprocess.TimeoutExpired:
            return "timeout", arguments[-1]
        if done.returncode in (0, 5):
            return "survived", ""
        failed = next((line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))), "")
        return "killed", failed.partition(" ")[2].partition(" - ")[0] or arguments[-1]


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    mutants = chosen_mutants(options)
    report = Path(options.report)
    done = read_report(report) if options.resume else {}
    left = [mutant for mutant in mutants if mutant not in done]
    print(f"{len(mutants)} mutants, {len(left)} to run", flush=True)
    verdicts = [done[mutant] for mutant in mutants if mutant in done]
    with tempfile.TemporaryDirectory(prefix="millrace-mutants-") as scratch:
        benches = [Bench(Path(scratch, str(n)), options.timeout, options.examples) for n in range(options.workers)]
        check_bench(benches[0])
        for verdict in run(left, benches):
            verdicts.append(verdict)
            report.write_text(json.dumps([asdict(one) for one in verdicts], indent=1), encoding="utf-8")
            show(verdict, len(verdicts), len(mutants))
    return summary(verdicts)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description="Negate conditions one at a time and name the mutants that survive.")
    made.add_argument("paths", nargs="*", help="files, or folders in which .sql files are looked for")
    made.add_argument("--only", action="append", default=[], metavar="FILE", help="only files of this name")
    made.add_argument("--limit", type=int, metavar="N", help="at most so many mutants, spread evenly")
    made.add_argument("--resume", action="store_true", help="keep the verdicts of the last report")
    made.add_argument("--report", default="mutants.json", help="where the verdicts go (default: mutants.json)")
    made.add_argument("--workers", type=int, default=2, help="how many mutants at a time (default: 2)")
    made.add_argument("--timeout", type=float, default=180.0, help="seconds per run of tests; then it counts as killed")
    made.add_argument("--examples", type=int, default=40, help="examples of the model per seed (default: 40)")
    return made


def chosen_mutants(options: argparse.Namespace) -> list[Mutant]:
    paths = [Path(path).resolve() for path in options.paths]
    files = [file for path in paths for file in (queries_in(path) if path.is_dir() else [path])]
    files = files or [SOURCE / "millrace" / "domain" / f"{name}.py" for name in RULES]
    mutants = [m for file in files if not options.only or file.name in options.only for m in mutants_of(file)]
    if options.limit is not None and len(mutants) > options.limit:
        mutants = [mutants[n * len(mutants) // options.limit] for n in range(options.limit)]
    return mutants


def queries_in(folder: Path) -> list[Path]:
    """A schema has no conditions that a test could notice: an index may be wider or narrower, not wrong."""
    return [file for file in sorted(folder.rglob("*.sql")) if file.name != "schema.sql"]


def check_bench(bench: Bench) -> None:
    """The copy must be what the tests import, and must pass them as it is."""
    where = bench.call([sys.executable, "-c", "import millrace; print(millrace.__file__)"], 60).stdout
    if str(bench.folder) not in where:
        sys.exit(f"the tests would not see the mutants: millrace comes from {where.strip()}")
    if (found := bench.run_tests("millrace/domain"))[0] != "survived":
        sys.exit(f"without any mutant the tests must pass, but {found[1]} does not")


def run(mutants: Sequence[Mutant], benches: list[Bench]) -> Iterator[Verdict]:
    free = list(benches)

    def judge(mutant: Mutant) -> Verdict:
        bench = free.pop()
        try:
            return bench.judge(mutant)
        finally:
            free.append(bench)

    with ThreadPoolExecutor(len(benches)) as pool:
        for future in as_completed([pool.submit(judge, mutant) for mutant in mutants]):
            yield future.result()


def read_report(report: Path) -> dict[Mutant, Verdict]:
    stored = json.loads(report.read_text(encoding="utf-8")) if report.exists() else []
    verdicts = [Verdict(Mutant(**item.pop("mutant")), **item) for item in stored]
    return {verdict.mutant: verdict for verdict in verdicts}


def show(verdict: Verdict, done: int, of: int) -> None:
    mutant = verdict.mutant
    if verdict.fate == "survived":
        print(f"SURVIVED  src/{mutant.file}:{mutant.line}  not ({mutant.what})", flush=True)
    if done % 10 == 0:
        print(f"{done} of {of}", flush=True)


def summary(verdicts: Sequence[Verdict]) -> int:
    fates = [verdict.fate for verdict in verdicts]
    survivors = sorted((v.mutant for v in verdicts if v.fate == "survived"), key=lambda m: (m.file, m.line))
    print(f"\n{fates.count('killed')} killed, {fates.count('timeout')} timed out, {len(survivors)} survived")
    print(*(f"src/{mutant.file}:{mutant.line}  not ({mutant.what})" for mutant in survivors), sep="\n")
    return int(bool(survivors))


if __name__ == "__main__":
    sys.exit(main())
