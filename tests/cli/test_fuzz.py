"""Whatever is typed: never a traceback, always a documented exit code, and --json parses (FUZZ-CLI)."""

from __future__ import annotations

import json
import os
import random
import string
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import uuid4

import click
import pytest

from millrace import App
from millrace.cli import exits
from millrace.cli.root import SECTIONS
from millrace.cli.root import command as parser_of
from tests.cli.stage import Stage

PER_PUSH = 500
PER_NIGHT = 2_000
ON_FILES = 25
COMMANDS = [name for commands in SECTIONS.values() for name, *_ in commands]
DOCUMENTED = exits.MEANING.keys() - {exits.BUG}

# What would wait for the clock, or for somebody: it is given by hand where it matters, in the other tests.
NEVER = {"--wait", "--install-completion", "--follow", "--reload", "--show-completion", "--supervised"}
FIRST = {
    "worker": ["--burst"],
    "tail": ["--no-follow"],
    "demo": ["--dry-run", "--jobs", "60"],
    "monitor": ["--once"],
    "serve": ["--dry-run"],
    "pipeline": ["tables"],  # the one that starts no Spark
    "schedule": ["--every", "1h"],
    "move": ["--dry-run", "--from", "memory://fuzz-old", "--to", "memory://fuzz-new"],
}
SECRET = "redis://user:hunter2@localhost/0"
SHORT = ["0", "1ms", "0.001", "-1", "nan", "inf", "", "x", "1e3", "٣s"]
WEIRD = [
    "",
    " ",
    "-",
    "--",
    "-1",
    "0",
    "1",
    "15",
    "16",
    "9" * 20,
    "9" * 5000,
    "1e309",
    "nan",
    "٣",
    "½",
    "none",
    "true",
    "null",
    "{}",
    "[]",
    '{"a": 1}',
    '{"self": 1}',
    '{"to": "ada", "n": NaN}',
    "[" * 2000,
    '{"a":' * 200 + "1" + "}" * 200,
    "@",
    "@nowhere.json",
    "@.",
    "job-1",
    "job-2",
    "job-dead",
    "mail",
    "default",
    "pool",
    "greet",
    "dead",
    "ready",
    "archived",
    "pending",
    "DLQ",
    "10m",
    "1h30m",
    "2026-01-31",
    "2026-13-41",
    "9999-12-31T23:59:59",
    "0001-01-01",
    "rate=5",
    "rate=-1",
    "lanes=2",
    "=",
    "keep_dead=7d",
    "max_depth=1e99",
    "a\0b",
    "a\tb\nc",
    "\x1b[2J",
    "\udcff\udc80",
    "ж" * 300,
    "../../etc/passwd",
    "'; DROP TABLE job; --",
    "%s%n{0}",
    "tests.cli.fuzz_app:app",
    "tests.cli.fuzz_app",
    "no.such.module:app",
    "os:path",
    "1:2",
    ":",
    "sqlite:///nowhere.db",
    SECRET,
    "ftp://x",
    "sqlite://",
    "http://[::1",
    "keep",
    "raise",
    "bury",
    "text",
    "json",
    "debug",
    "x=y",
    "enqueued",
]

JOBS = (["job-1", "job-2", "job-dead", "nowhere"], ["job-3", "job-1", "-"])
QUEUES = (["mail", "default", "pool"], ["mail"])
POSITIONAL = {
    "submit": (["greet", "greet", "greet", "fail"], ['{"name": "x"}', '{"name": "x"}', "-", '{"name": 1}']),
    "queues": QUEUES,
    "pause": QUEUES,
    "resume": QUEUES,
    "drain": QUEUES,
    "obliterate": QUEUES,
    "pools": QUEUES,
    "schedules": (["nightly"], ["nightly"]),
    "schedule": (["nightly", "{}"], ["fail"]),
    "flow": (["summer"], ["summer"]),
    "pipeline": (["jobs", "events"], ["dead", "workers"]),
}
TWICE = {"submit": ("--task", "--payload", "--many")}  # said by position already
FITTING = {
    "--status": ["ready", "dead", "archived", "pending", "completed", "scheduled", "failed"],
    "--queue": ["mail", "default"],
    "--queues": ["mail,default", "default"],
    "--task": ["greet", "fail"],
    "--tasks": ["greet,fail", "greet"],
    "--group": ["g"],
    "--key": ["k"],
    "--since": ["1h", "2020-01-01"],
    "--until": ["1h", "2030-01-01"],
    "--finished-from": ["1h", "2020-01-01"],
    "--finished-to": ["1h", "2030-01-01"],
    "--error": ["0123456789"],
    "--cursor": ["0", "1", "3"],
    "--id": ["job-1", "new"],
    "--after": ["job-1", "job-dead"],
    "--payload": ['{"name": "x"}', "{}"],
    "--on-hit": ["keep", "replace", "extend", "raise"],
    "--header": ["a=b"],
    "--set": ["rate=5", "max_running=3", "max_depth=none", "keep_dead=7d", "lanes=2"],
    "--kind": ["enqueued", "buried"],
    "--job": ["job-1"],
    "--seconds": ["3", "5"],
    "--jobs": ["60"],
    "--seed": ["7"],
    "--dir": ["shop"],
    "--priority": ["0", "15"],
    "--max-attempts": ["1", "9"],
    "--limit": ["1", "9"],
    "--lines": ["0", "3"],
    "--lane": ["0", "1"],
    "--processes": ["1"],
    "--child-processes": ["1"],
    "--max-jobs-per-child": ["5"],
    "--max-memory-per-child": ["1GiB", "500MB"],
    "--from": ["1", "2", "1:1"],
    "--to": ["2", "3"],
    "--unknown-task": ["leave", "bury"],
    "--log-level": ["debug", "error"],
    "--log-format": ["text", "json"],
    "--example": ["tasks.py", "other.py"],
    "--app": ["tests.cli.fuzz_app:app"],
    "--url": ["memory://other"],
    "--shard": ["0", "a"],
    "--shards": ["0-7", "a,b"],
    "--index-mode": ["index-only", "hybrid", "log-scan"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_whatever_is_typed_ends_in_words_and_a_documented_code(command: str, fuzzed: Stage):
    _fuzz(fuzzed, command, range(PER_PUSH))


@pytest.mark.nightly
@pytest.mark.parametrize("command", COMMANDS)
def test_whatever_is_typed_at_length_ends_in_words_and_a_documented_code(command: str, fuzzed: Stage):
    _fuzz(fuzzed, command, range(PER_PUSH, PER_PUSH + PER_NIGHT))


@pytest.mark.parametrize("command", COMMANDS)
def test_whatever_is_typed_about_a_file_ends_in_words_and_a_documented_code(
    command: str, fuzzed: Stage, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("MILLRACE_URL", "sqlite:///jobs.db")
    _prepare(fuzzed)
    _fuzz(fuzzed, command, range(-ON_FILES, 0))


@pytest.mark.parametrize("command", COMMANDS)
def test_whatever_is_typed_about_a_directory_ends_in_words_and_a_documented_code(
    command: str, fuzzed: Stage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv("MILLRACE_URL", f"file://{tmp_path}/jobs?durability=relaxed")
    _prepare(fuzzed)
    _fuzz(fuzzed, command, range(-ON_FILES, 0))


@pytest.fixture
def fuzzed(bare: Stage, monkeypatch: pytest.MonkeyPatch) -> Stage:
    """A store with a job in each state, and an app that knows one task."""
    monkeypatch.setenv("MILLRACE_URL", f"memory://fuzz-{uuid4().hex}")
    monkeypatch.setenv("MILLRACE_APP", "tests.cli.fuzz_app:app")
    _prepare(bare)
    return bare


def _prepare(cli: Stage) -> None:
    cli("init")
    cli("submit", "greet", '{"name": "ada"}', "--id", "job-1")
    cli("submit", "greet", '{"name": "bob"}', "--id", "job-2", "--queue", "mail", "--delay", "1h", "--group", "g")
    cli("submit", "fail", "{}", "--id", "job-dead")
    cli("worker", "--burst")
    cli("submit", "greet", '{"name": "eve"}', "--id", "job-3", "--after", "job-2", "--key", "k")
    with App(os.environ["MILLRACE_URL"]).sync as sync:
        greet = sync.app.task(name="greet")(_greet)
        sync.app.gather([greet.spec("ada"), greet.spec("bob")]).sync.enqueue(id="summer")


def _greet(name: str) -> None:
    raise AssertionError("no worker of this test runs it")


def _fuzz(cli: Stage, command: str, seeds: range) -> None:
    codes: Counter[int] = Counter()
    for seed in seeds:
        chance = random.Random(f"{command} {seed}")
        arguments = [command, *FIRST.get(command, []), *_arguments(chance, command)]
        if chance.random() < 0.1:
            arguments = ["--json", *arguments]
        stdin = chance.choice([b"", b'{"name": "x"}\n', b"job-1\njob-2\n", b"\xff\xfe\n{", b"[1]\n" * 3])
        with cli._patch.context() as patch:
            if chance.random() < 0.1:
                variable = chance.choice(["MILLRACE_SLOTS", "MILLRACE_QUEUES", "MILLRACE_APP"])
                patch.setenv(variable, _word(chance).replace("\0", ""))
            ran = cli.typed(arguments, stdin)

        codes[ran.code] += 1
        assert ran.code in DOCUMENTED, (seed, arguments, ran)
        assert "Traceback" not in ran.err, (seed, arguments, ran)
        assert "\x1b" not in ran.out + ran.err, (seed, arguments, ran)
        if ("--url", SECRET) in pairwise(arguments) and arguments.count(SECRET) == 1:
            assert "hunter2" not in ran.out + ran.err, (seed, arguments, ran)
        options = arguments[: arguments.index("--")] if "--" in arguments else arguments
        if ran.code == exits.OK and "--json" in options and not {"--help", "-h"} & set(arguments):
            _parses(command, ran.out, (seed, arguments))
    assert codes[exits.OK] > len(seeds) / 50, codes  # what is always refused at the door tests the door only
    assert codes[exits.USAGE] > len(seeds) / 20, codes


def _parses(command: str, text: str, which: Any) -> None:
    try:
        for document in text.splitlines() if command == "tail" else [text]:
            json.loads(document)
    except ValueError as error:
        raise AssertionError((which, text)) from error


def _arguments(chance: random.Random, command: str) -> Iterator[str]:
    """Options of the command as its parser knows them, with values that fit, nearly fit, or do not fit at all."""
    known = parser_of(command)
    if isinstance(known, click.Group):
        known = known.get_command(click.Context(known), FIRST[command][0])
    wild = chance.random() < 0.5
    options = [one for one in known.params if one.param_type_name == "option" and not NEVER & set(one.opts)]
    for option in chance.sample(options, k=min(len(options), chance.choice([0, 1, 1, 2, 3, 6]))):
        name = chance.choice([*option.opts, *option.secondary_opts])
        if not wild and option.opts[0] in ("--url", "--app", "--help", *TWICE.get(command, ())):
            continue
        yield name
        if not option.is_flag:
            yield _value(chance, option.opts[0], wild)
    arguments = [one for one in known.params if one.param_type_name == "argument"]
    many = any(one.nargs != 1 for one in arguments)
    needed = sum(one.required or chance.random() < 0.7 for one in arguments)
    for number in range(chance.choice([0, 1, 1, 2, 2, 3]) if wild or many else needed):
        yield _word(chance) if wild else chance.choice(POSITIONAL.get(command, JOBS)[number % 2])
    if chance.random() < 0.3:
        yield "--json"
    if wild and chance.random() < 0.1:
        yield chance.choice(["--help", "--no-such-option", "-Z", "-", "--json=1", "--url"])


def _value(chance: random.Random, name: str, wild: bool) -> str:
    if name in ("--wait-for", "--shutdown-deadline", "--grace"):
        return chance.choice(SHORT)
    if wild and chance.random() < 0.7:
        return _word(chance)
    return chance.choice(FITTING.get(name, ["1", "2", "10s"]))


def _word(chance: random.Random) -> str:
    if chance.random() < 0.8:
        return chance.choice(WEIRD)
    return "".join(chance.choices(string.printable + "äж\u202e\U0001f600\udc80", k=chance.randint(0, 40)))
