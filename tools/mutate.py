"""Mutation testing: negate conditions one at a time, run the tests on each mutant, and list the survivors.

A line that tests execute is not necessarily a line that they check. Each mutant is a copy of the project with one
condition negated. A mutant that no test notices is a survivor: it needs a test, or a reason.

    python -m tools.mutate                                the rules: src/millrace/domain/ledger.py, retry.py and rules/
    python -m tools.mutate --only ledger.py --limit 20    a part of them
    python -m tools.mutate src/millrace/store             the conditions in .sql and .lua files below a folder
    python -m tools.mutate --sample 60 --seed 1 …         some of them, drawn at random
    python -m tools.mutate --resume                       continue an interrupted run
    python -m tools.mutate --budget 60 …                  give up on a mutant after a minute of tests

The tests run in processes that `tools/mutant_server.py` forks.
"""

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from tools import mutant_lua, mutant_sql

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"
SETTINGS = ("-x", "-q", "-p", "no:cacheprovider", "--hypothesis-seed=0", "--no-header", "--tb=no")  # of pytest
SHARED_TESTS = ("tests/store/test_conformance.py", "tests/domain", "tests/store/test_model.py")


@dataclass(frozen=True)
class Mutant:
    """One condition to negate: the `number`-th of its file."""

    file: str  # below src
    number: int
    line: int
    what: str
    last: int = 0  # line of the condition
    function: tuple[int, int] = (0, 0)  # the first and the last line of the outermost function around it


@dataclass(frozen=True)
class Verdict:
    mutant: Mutant
    fate: str  # killed, timeout, survived; undecided: the budget was used up
    by: str
    seconds: float


class Negate(ast.NodeTransformer):
    """Visits every condition of a file in a fixed order; negates the wanted one, if any."""

    def __init__(self, wanted: int | None = None) -> None:
        self.wanted = wanted
        self.found: list[tuple[int, int, str]] = []

    def condition(self, node: ast.expr) -> ast.expr:
        self.found.append((node.lineno, node.end_lineno or node.lineno, ast.unparse(node)))
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
        """A comparison has been counted already. `x or ""` is a default, and TYPE_CHECKING is for type checkers."""
        plain = node.operand if isinstance(node, ast.UnaryOp) else node
        is_typing = isinstance(plain, ast.Name) and plain.id == "TYPE_CHECKING"
        return node if is_typing or isinstance(plain, ast.Compare | ast.Constant) else self.condition(node)

    def visit_Assert(self, node: ast.Assert) -> ast.Assert:
        """Skip assertions: a negated one fails at once and shows nothing."""
        return node


def mutants_of(file: Path) -> Iterator[Mutant]:
    name = str(file.relative_to(SOURCE))
    text = file.read_text(encoding="utf-8")
    if file.suffix in CONDITIONS:
        for number, (start, end) in enumerate(CONDITIONS[file.suffix](text)):
            yield Mutant(name, number, text.count("\n", 0, start) + 1, " ".join(text[start:end].split()))
        return
    visitor, tree = Negate(), ast.parse(text)
    functions = [
        (min(part.lineno for part in (node, *node.decorator_list)), node.end_lineno or node.lineno)
        for node in ast.walk(tree)  # outer functions come before inner ones
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    visitor.visit(tree)
    for number, (line, last, what) in enumerate(visitor.found):
        around = next(((first, end) for first, end in functions if first <= line <= end), (0, 0))
        yield Mutant(name, number, line, what, last, around)


CONDITIONS = {".sql": mutant_sql.conditions, ".lua": mutant_lua.conditions}


def mutated(text: str, mutant: Mutant) -> str:
    suffix = Path(mutant.file).suffix
    if suffix in CONDITIONS:
        start, end = CONDITIONS[suffix](text)[mutant.number]
        return f"{text[:start]}{'NOT' if suffix == '.sql' else 'not'} ({text[start:end]}){text[end:]}"
    tree = Negate(mutant.number).visit(ast.parse(text))
    return ast.unparse(ast.fix_missing_locations(tree))


class Bench:
    """A copy of the project per worker, in which one file at a time is mutated. The original can be edited
    meanwhile.
    """

    def __init__(self, folder: Path, timeout: float, budget: float, examples: int) -> None:
        self.folder = folder
        self.timeout = timeout
        self.budget = budget
        self.servers: dict[str, subprocess.Popen[str]] = {}  # by store
        scratch = folder / "tmp"
        for part in ("src", "tests", "proof", "tools"):
            shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
        for file in ("pyproject.toml", "README.md"):
            shutil.copy(ROOT / file, folder)
        scratch.mkdir(mode=0o755)
        self.environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(folder / "src"), str(folder)]),
            "PYTHONDONTWRITEBYTECODE": "1",
            "MILLRACE_MODEL_EXAMPLES": str(examples),
            "TMPDIR": str(scratch),
        }

    def call(self, command: list[str], timeout: float) -> subprocess.CompletedProcess[str]:
        at, env = self.folder, self.environment
        return subprocess.run(command, cwd=at, env=env, capture_output=True, text=True, timeout=timeout, check=False)

    def start(self, store: str) -> None:
        """Start a server that runs the tests on this store. They must pass without a mutant."""
        where = self.call([sys.executable, "-c", "import millrace; print(millrace.__file__)"], 60).stdout
        if str(self.folder) not in where:
            sys.exit(f"the tests would not see the mutants: millrace comes from {where.strip()}")
        conformance, domain, model = SHARED_TESTS
        tests = [conformance, domain if store == "memory" else f"tests/store/{store}", model]
        self.servers[store] = subprocess.Popen(
            [sys.executable, "-m", "tools.mutant_server", store, str(self.timeout), str(self.budget), *tests],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        found = self._reply(store)
        if found["fate"] != "survived":
            sys.exit(f"without any mutant the tests must pass, but {found['by']} does not:\n{found['text']}")

    def close(self) -> None:
        for server in self.servers.values():
            server.communicate()

    def _reply(self, store: str) -> dict[str, str]:
        output = self.servers[store].stdout
        assert output is not None
        reply: dict[str, str] = json.loads(output.readline())
        return reply

    def judge(self, mutant: Mutant) -> Verdict:
        """Run the tests in a forked process, or in a new one if the functions that were imported cannot be changed."""
        began = perf_counter()
        store = store_of(mutant)
        if store not in self.servers:
            self.start(store)
        request = self.servers[store].stdin
        assert request is not None
        print(json.dumps(asdict(mutant)), file=request, flush=True)
        found = self._reply(store)
        fate, by = found["fate"], found["by"]
        if fate == "unknown":
            fate, by = self.judge_slowly(mutant)
        return Verdict(mutant, fate, by, round(perf_counter() - began, 1))

    def judge_slowly(self, mutant: Mutant) -> tuple[str, str]:
        target = self.folder / "src" / mutant.file
        original = target.read_text(encoding="utf-8")
        target.write_text(mutated(original, mutant), encoding="utf-8")
        try:
            conformance, domain, model = SHARED_TESTS
            for tests, chosen in ((conformance, "memory"), (domain, ""), (model, "memory")):
                if (found := self._run(tests, chosen))[0] != "survived":
                    return found
            return "survived", ""
        finally:
            target.write_text(original, encoding="utf-8")

    def _run(self, tests: str, chosen: str) -> tuple[str, str]:
        """Run tests. A kill counts only if it repeats, because a flaky test could kill any mutant."""
        settings = ["-m", "not nightly", "-k", chosen]
        while True:
            fate, by = self._pytest([*settings, tests])
            if fate != "killed" or "::" not in by or self._pytest([by])[0] != "survived":
                return fate, by
            print(f"not repeated: {by}", flush=True)
            settings += ["--deselect", by]

    def _pytest(self, arguments: list[str]) -> tuple[str, str]:
        try:
            done = self.call([sys.executable, "-m", "pytest", *SETTINGS, *arguments], self.timeout)
        except subprocess.TimeoutExpired:
            return "timeout", arguments[-1]
        if done.returncode in (0, 5):
            return "survived", ""
        failed = next((line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))), "")
        return "killed", failed.partition(" ")[2].partition(" - ")[0] or arguments[-1]


def store_of(mutant: Mutant) -> str:
    """Return the store on which the tests of a mutant run."""
    parts = Path(mutant.file).parts
    return parts[2] if parts[1] == "store" and len(parts) > 3 else "memory"


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    mutants = chosen_mutants(options)
    report = Path(options.report)
    done = read_report(report) if options.resume else {}
    left = [mutant for mutant in mutants if mutant not in done]
    print(f"{len(mutants)} mutants, {len(left)} to run", flush=True)
    verdicts = [done[mutant] for mutant in mutants if mutant in done]
    with tempfile.TemporaryDirectory(prefix="millrace-mutants-") as scratch:
        Path(scratch).chmod(0o755)  # a PostgreSQL server that a test starts runs as another user
        limits = (options.timeout, options.budget, options.examples)
        benches = [Bench(Path(scratch, str(n)), *limits) for n in range(options.workers)]
        try:
            for verdict in run(left, benches):
                verdicts.append(verdict)
                report.write_text(json.dumps([asdict(one) for one in verdicts], indent=1), encoding="utf-8")
                show(verdict, len(verdicts), len(mutants))
        finally:
            for bench in benches:
                bench.close()
    return summary(verdicts)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description="Negate conditions one at a time and name the mutants that survive.")
    made.add_argument("paths", nargs="*", help="files, or folders in which .sql and .lua files are looked for")
    made.add_argument("--only", action="append", default=[], metavar="FILE", help="only files of this name")
    made.add_argument("--limit", type=int, metavar="N", help="the most mutants, spread evenly")
    made.add_argument("--sample", type=int, metavar="N", help="the most mutants, drawn at random")
    made.add_argument("--seed", type=int, default=0, metavar="S", help="of --sample (default: 0)")
    made.add_argument("--resume", action="store_true", help="keep the verdicts of the last report")
    made.add_argument("--report", default="mutants.json", help="where the verdicts go (default: mutants.json)")
    made.add_argument("--workers", type=int, default=2, help="how many mutants at a time (default: 2)")
    made.add_argument("--timeout", type=float, default=180.0, help="seconds per run of tests; then it counts as killed")
    made.add_argument("--budget", type=float, default=1e6, help="seconds per mutant after which no further test begins")
    made.add_argument("--examples", type=int, default=40, help="examples of the model per seed (default: 40)")
    return made


def chosen_mutants(options: argparse.Namespace) -> list[Mutant]:
    paths = [Path(path).resolve() for path in options.paths]
    files = [file for path in paths for file in (queries_in(path) if path.is_dir() else [path])]
    domain = SOURCE / "millrace" / "domain"
    if not paths:
        files = [domain / "ledger.py", domain / "retry.py", *sorted((domain / "rules").glob("*.py"))]
    mutants = [m for file in files if not options.only or file.name in options.only for m in mutants_of(file)]
    if options.limit is not None and len(mutants) > options.limit:
        mutants = [mutants[n * len(mutants) // options.limit] for n in range(options.limit)]
    if options.sample is not None and len(mutants) > options.sample:
        mutants = random.Random(options.seed).sample(mutants, options.sample)
    return mutants


def queries_in(folder: Path) -> list[Path]:
    """The .sql and .lua files, without schemas, which have no conditions that a test could notice."""
    files = [file for file in sorted(folder.rglob("*")) if file.suffix in CONDITIONS]
    return [file for file in files if file.name != "schema.sql" and file.parent.name != "migrations"]


def run(mutants: Sequence[Mutant], benches: list[Bench]) -> Iterator[Verdict]:
    free = list(benches)

    def judge(mutant: Mutant) -> Verdict:
        bench = free.pop()
        try:
            return bench.judge(mutant)
        finally:
            free.append(bench)

    with ThreadPoolExecutor(len(benches)) as pool:
        try:
            for future in as_completed([pool.submit(judge, mutant) for mutant in mutants]):
                yield future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def read_report(report: Path) -> dict[Mutant, Verdict]:
    stored = json.loads(report.read_text(encoding="utf-8")) if report.exists() else []
    verdicts = [Verdict(mutant_from(item.pop("mutant")), **item) for item in stored]
    return {verdict.mutant: verdict for verdict in verdicts if verdict.fate != "undecided"}


def mutant_from(stored: dict[str, Any]) -> Mutant:
    return Mutant(**{**stored, "function": tuple(stored["function"])})


def show(verdict: Verdict, done: int, of: int) -> None:
    mutant = verdict.mutant
    if verdict.fate in ("survived", "undecided"):
        print(f"{verdict.fate.upper()}  src/{mutant.file}:{mutant.line}  not ({mutant.what})", flush=True)
    if done % 10 == 0:
        print(f"{done} of {of}", flush=True)


def summary(verdicts: Sequence[Verdict]) -> int:
    left = [verdict.mutant for verdict in verdicts if verdict.fate in ("survived", "undecided")]
    survivors = sorted(left, key=lambda mutant: (mutant.file, mutant.line))
    print()
    for file in sorted({verdict.mutant.file for verdict in verdicts}):
        print(f"{file}: {counted([verdict for verdict in verdicts if verdict.mutant.file == file])}")
    print(f"all: {counted(verdicts)}")
    print(*(f"src/{mutant.file}:{mutant.line}  not ({mutant.what})" for mutant in survivors), sep="\n")
    return int(bool(survivors))


def counted(verdicts: Sequence[Verdict]) -> str:
    fates = Counter(verdict.fate for verdict in verdicts)
    killed = f"{len(verdicts)} mutants, {fates['killed']} killed, {fates['timeout']} timed out"
    return f"{killed}, {fates['survived']} survived, {fates['undecided']} undecided"


if __name__ == "__main__":
    sys.exit(main())
