"""Runs the tests on many mutants, each in a process that is forked from one that has imported and collected all tests.

Starting pytest, importing and collecting takes several seconds; the test that kills a mutant often takes milliseconds.
`tools/mutate.py` starts one server in each copy of the project. The server first runs all tests without a mutant, and
notes how long each test takes, and which lines of the rules it executes or which SQL statements it uses. It then reads
one mutant per line from its standard input and answers each with one line. Tests that execute the negated condition run
first, short tests before long ones, and the first failure ends the process. Conditions in Lua cannot be traced: tests
that killed other mutants of the file run first.

A mutant of a Python file is applied to the functions that were imported. If the condition is outside of functions, or
in a function that no test calls, the answer is `unknown`, and the mutant needs a process of its own.
"""

from __future__ import annotations

import ast
import atexit
import functools
import gc
import json
import math
import os
import re
import select
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any, TextIO

import pytest

from tools.mutant_sql import Parts, note_statements, part_of
from tools.mutate import SETTINGS, Mutant, Negate, mutant_from, mutated

FOLDER = Path.cwd()  # of the copy
SOURCE = FOLDER / "src"
RULES = str(SOURCE / "millrace" / "domain") + os.sep
TEST_LIMIT = 20  # seconds for a test that has no limit of its own
SHORT = 1.0  # seconds; a shorter test that reaches the limit hangs
GRACE = 10.0  # seconds for a process that has answered to remove what it started
END_SESSIONS = """SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"""
SCHEMAS = "SELECT nspname FROM pg_namespace WHERE starts_with(nspname, %s)"


class Server:
    """A plugin of pytest: it replaces the loop that runs the tests."""

    def __init__(self, store: str, timeout: float, budget: float, requests: TextIO, replies: TextIO) -> None:
        self.store = store
        self.timeout = timeout
        self.budget = budget
        self.requests = requests
        self.replies = replies
        self.seconds: dict[str, float] = {}
        self.lines: dict[str, dict[str, set[int]]] = {}  # by test, by file
        self.parts: dict[str, set[str]] = {}  # by test: the SQL statements, functions and views that it reaches
        self.killers: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keep the tests of this store, and those that are not run on several stores."""
        items[:] = [item for item in items if self.store in _stores(item) and not _takes_long(item)]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.testsfailed:
            self.answer({"fate": "killed", "by": "the collection of tests", "text": ""})
            return True
        with database(self.store):
            self.answer(self.first_run(session))
            for line in self.requests:
                self.answer(self.judge(session, json.loads(line)))
        return True

    def answer(self, reply: dict[str, Any]) -> None:
        print(json.dumps(reply), file=self.replies, flush=True)

    def first_run(self, session: pytest.Session) -> dict[str, Any]:
        """Run all tests without a mutant."""
        found = self.fork(session, sorted(session.items, key=_is_model), trace=True, timeout=20 * self.timeout)
        parts = Parts(SOURCE / "millrace" / "store" / self.store)
        for name, (seconds, lines, statements) in found.pop("tests", {}).items():
            self.seconds[name] = seconds
            self.lines[name] = {file: set(numbers) for file, numbers in lines.items()}
            self.parts[name] = parts.reached_from(statements)
        return found

    def judge(self, session: pytest.Session, request: dict[str, Any]) -> dict[str, Any]:
        """Run tests until one fails. A kill counts only if it repeats, because a flaky test could kill any mutant."""
        mutant = mutant_from(request)
        items = self.in_order(session.items, mutant)
        while True:
            found = self.fork(session, items, mutant)
            killer = next((item for item in items if item.nodeid == found["by"]), None)
            if found["fate"] == "survived" and mutant.file.endswith(".py") and all(map(_is_model, items)):
                return {**found, "fate": "unknown"}  # no test calls the function: it may have been called by an import
            if found["fate"] in ("survived", "unknown", "undecided") or killer is None:
                return found
            hangs = found["fate"] == "timeout" and self.seconds[killer.nodeid] < SHORT
            if hangs or self.fork(session, [killer], mutant)["fate"] != "survived":
                self.killers[mutant.file][found["by"]] += not _is_model(killer)
                return found
            print(f"not repeated: {found['by']}", file=sys.stderr, flush=True)
            items = [item for item in items if item is not killer]

    def in_order(self, items: list[pytest.Item], mutant: Mutant) -> list[pytest.Item]:
        """Return the tests that can kill a mutant, the most likely first. The model runs always, and last."""
        if mutant.file.endswith(".py"):
            items = [item for item in items if _is_model(item) or self.executes(item, mutant, mutant.function)]
        subject = Path(mutant.file).stem
        if mutant.file.endswith(".sql"):
            subject = part_of((SOURCE / mutant.file).read_text("utf-8"), mutant.line)
            items = [item for item in items if self.may_reach(item, subject)]
        killers = self.killers[mutant.file]
        words = [word for word in re.split(r"[^a-z]+", subject.removeprefix("millrace.")) if len(word) > 3]

        def rank(item: pytest.Item) -> tuple[object, ...]:
            name = item.nodeid
            named = any(word in name for word in words)
            hits = self.executes(item, mutant, (mutant.line, mutant.last))
            return _is_model(item), not hits, -killers[name], not named, self.seconds.get(name, 0.0)

        return sorted(items, key=rank)

    def executes(self, item: pytest.Item, mutant: Mutant, lines: tuple[int, int]) -> bool:
        executed = self.lines.get(item.nodeid, {}).get(str(SOURCE / mutant.file), set())
        return not executed.isdisjoint(range(lines[0], lines[1] + 1))

    def may_reach(self, item: pytest.Item, part: str) -> bool:
        """A test that uses no statement itself may start a process that does."""
        parts = self.parts.get(item.nodeid)
        return not parts or part in parts or _is_model(item)

    def fork(
        self,
        session: pytest.Session,
        items: list[pytest.Item],
        mutant: Mutant | None = None,
        *,
        trace: bool = False,
        timeout: float | None = None,
    ) -> dict[str, Any]:
        folder = Path(tempfile.mkdtemp(prefix="run-"))
        reader, writer = os.pipe()
        with MutatedFile(mutant) as file:
            pid = os.fork()
            if pid == 0:
                run = Run(session, self.store, self.budget, trace=trace)
                run_as_child(run, items, file, Path(folder, "tests"), writer)
            os.close(writer)
            reply = _read_line(reader, timeout or self.timeout)
            _end(pid)
        shutil.rmtree(folder, ignore_errors=True)
        if self.store == "postgres":
            _clean_postgres(pid)
        if reply is None:
            # With a budget, a long test may be the reason, and not the mutant.
            return {"fate": "undecided" if self.budget < self.timeout else "timeout", "by": "", "text": ""}
        found: dict[str, Any] = json.loads(reply) if reply else {"fate": "killed", "by": "", "text": "it ended"}
        return found


class MutatedFile:
    """The mutant on the disk, for what is read from there, also by other processes."""

    def __init__(self, mutant: Mutant | None) -> None:
        self.mutant = mutant
        self.path = SOURCE / mutant.file if mutant else FOLDER
        self.original = self.path.read_text("utf-8") if mutant else ""

    def __enter__(self) -> MutatedFile:
        if self.mutant:
            self.path.write_text(mutated(self.original, self.mutant), "utf-8")
        return self

    def __exit__(self, *_: object) -> None:
        if self.mutant:
            self.path.write_text(self.original, "utf-8")

    def apply(self) -> bool:
        """Let this process use the mutant. Return whether that is possible."""
        if self.mutant and self.path.suffix == ".py" and not self._replace_code(self.mutant.number):
            return False
        for cached in gc.get_objects():
            if isinstance(cached, functools._lru_cache_wrapper) and str(cached.__module__).startswith("millrace."):
                cached.cache_clear()
        connection: Any = sys.modules.get("millrace.store.sqlite.connection")
        if connection is not None:  # statements that were read when the module was imported
            statements = connection.load_statements("millrace.store.sqlite")
            connection.SQL.update({name: connection._positional(sql)[0] for name, sql in statements.items()})
        return True

    def _replace_code(self, number: int) -> bool:
        """Replace the code of functions. Return whether a function has changed, and it is clear which."""
        tree = Negate(number).visit(ast.parse(self.original))
        new: dict[tuple[str, int], list[CodeType]] = {}
        for code in _codes(compile(ast.fix_missing_locations(tree), str(self.path), "exec")):
            new.setdefault((code.co_qualname, code.co_firstlineno), []).append(code)
        replaced = 0
        for function in gc.get_objects():
            if isinstance(function, FunctionType) and function.__code__.co_filename == str(self.path):
                old = function.__code__
                found = new[old.co_qualname, old.co_firstlineno]
                if len(found) > 1:
                    return False
                if found[0] != old:
                    function.__code__ = found[0]
                    replaced += 1
        return replaced > 0


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for part in code.co_consts:
        if isinstance(part, CodeType):
            yield from _codes(part)


# ── in the forked process ─────────────────────────────────────────────────────────────────────────


def run_as_child(run: Run, items: list[pytest.Item], file: MutatedFile, folder: Path, writer: int) -> None:
    """Run tests until one fails, answer, remove what was started, and end the process."""
    try:
        os.setsid()
        atexit._clear()  # what the server started is not to be stopped here
        nothing = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(nothing, number)
        factory: Any = run.session.config._tmp_path_factory  # type: ignore[attr-defined]
        factory._given_basetemp, factory._basetemp = folder, None
        reply = {"fate": "unknown", "by": "", "text": ""}
        if file.mutant is None or file.apply():
            reply = run.run(items)
        os.write(writer, json.dumps(reply).encode() + b"\n")
        run.session._setupstate.teardown_exact(None)
        atexit._run_exitfuncs()
    finally:
        os._exit(0)


class Run:
    """A plugin of pytest that notes what the tests of one process did."""

    def __init__(self, session: pytest.Session, store: str, budget: float, *, trace: bool) -> None:
        self.session = session
        self.trace = trace
        self.store = store
        self.until = math.inf if trace else time.perf_counter() + budget
        self.failed: tuple[str, str] | None = None
        self.executed: defaultdict[str, set[int]] = defaultdict(set)
        session.config.pluginmanager.register(self)

    def run(self, items: list[pytest.Item]) -> dict[str, Any]:
        tests: dict[str, tuple[float, dict[str, list[int]], list[str]]] = {}
        statements = note_statements(self.store) if self.trace else set()
        trace_lines = self.trace and self.store == "memory"
        for item, following in zip(items, [*items[1:], None], strict=True):
            self.executed.clear()
            statements.clear()
            self.set_trace(self.on_call if trace_lines and not _is_model(item) else None)
            began = time.perf_counter()
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            self.set_trace(None)
            if self.trace:
                lines = {file: sorted(numbers) for file, numbers in self.executed.items()}
                tests[item.nodeid] = time.perf_counter() - began, lines, sorted(statements)
            if self.failed:
                by, text = self.failed
                return {"fate": "timeout" if "Timeout" in text else "killed", "by": by, "text": text[-2000:]}
            if time.perf_counter() > self.until and following is not None:
                return {"fate": "undecided", "by": "", "text": ""}
        return {"fate": "survived", "by": "", "text": "", "tests": tests}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and self.failed is None:
            self.failed = report.nodeid, report.longreprtext

    def set_trace(self, function: Callable[[FrameType, str, Any], Any] | None) -> None:
        sys.settrace(function)
        threading.settrace(function)

    def on_call(self, frame: FrameType, event: str, argument: object) -> Any:
        file = frame.f_code.co_filename
        if not file.startswith(RULES):
            return None
        executed = self.executed[file]
        executed.add(frame.f_lineno)

        def on_line(frame: FrameType, event: str, argument: object) -> Any:
            executed.add(frame.f_lineno)
            return on_line

        return on_line


# ── in the server ─────────────────────────────────────────────────────────────────────────────────


@contextmanager
def database(store: str) -> Iterator[None]:
    """Run a PostgreSQL server for all mutants. Redis starts fast: each mutant has its own server, which may hang."""
    if store != "postgres":
        yield
        return
    servers = import_module("tests.servers.postgres")
    server = servers.PostgresServer(servers.wheel_binaries())
    try:
        server.start()
        os.environ["MILLRACE_TEST_POSTGRES"] = server.url
        yield
    finally:
        server.remove()


def _stores(item: pytest.Item) -> set[str]:
    """Return the stores on which a test runs. A test of the rules belongs to the memory store."""
    _, folder, *parts = item.path.relative_to(FOLDER).parts
    if folder != "store":
        return {"memory"}
    if len(parts) > 1:
        return {parts[0]}
    call = getattr(item, "callspec", None)
    return {call.params[name] for name in ("name", "store") if name in call.params} if call else set()


def _takes_long(item: pytest.Item) -> bool:
    is_own = item.path.parent.parent.name == "store"
    marks = ("nightly", "slow") if is_own else ("nightly",)
    return any(item.get_closest_marker(mark) for mark in marks)


def _is_model(item: pytest.Item) -> bool:
    return item.path.name == "test_model.py"


def _read_line(reader: int, timeout: float) -> str | None:
    """Return the answer of a process; nothing if it ended without one, None if there was none in time."""
    until, read = time.monotonic() + timeout, b""
    with os.fdopen(reader, "rb", 0) as stream:
        while not read.endswith(b"\n"):
            if not select.select([stream], [], [], max(0.0, until - time.monotonic()))[0]:
                return None
            part = stream.read(1 << 20)
            if not part:
                return ""
            read += part
    return read.decode()


def _end(pid: int) -> None:
    """Wait until a process has removed what it started, then end it and its children."""
    until = time.monotonic() + GRACE
    while time.monotonic() < until and os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        time.sleep(0.002)
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def _clean_postgres(pid: int) -> None:
    import psycopg

    with psycopg.connect(os.environ["MILLRACE_TEST_POSTGRES"], autocommit=True) as connection:
        connection.execute(END_SESSIONS)
        for (schema,) in connection.execute(SCHEMAS, [f"t{pid}_"]).fetchall():
            connection.execute(f'DROP SCHEMA "{schema}" CASCADE'.encode())


def main(store: str, timeout: str, budget: str, *tests: str) -> int:
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    server = Server(store, float(timeout), float(budget), os.fdopen(os.dup(0)), replies)
    settings = [*SETTINGS, "-s", f"--timeout={TEST_LIMIT}", "--tb=short"]
    return int(pytest.main([*settings, *tests], plugins=[server]))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
