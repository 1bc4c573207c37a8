"""Snippets of right use that pass, and of wrong use that are refused, by mypy and by pyright alike."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RIGHT, WRONG = HERE / "right_use.py", HERE / "wrong_use.py"
Checker = Callable[..., dict[str, set[int]]]
IGNORE = re.compile(r" +# type: ignore\[[a-z, -]+\]$", re.MULTILINE)


def snippets(path: Path) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    body = ast.parse(path.read_text(encoding="utf-8")).body
    return [node for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def mistakes() -> dict[int, str]:
    """Line of each mistake, and the snippet that it is in."""
    lines = WRONG.read_text(encoding="utf-8").splitlines()
    return {
        number: snippet.name
        for snippet in snippets(WRONG)
        for number in range(snippet.lineno, (snippet.end_lineno or 0) + 1)
        if IGNORE.search(lines[number - 1])
    }


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wrong snippets without the comments that hide what is wrong."""
    path = tmp_path_factory.mktemp("typing") / WRONG.name
    path.write_text(IGNORE.sub("", WRONG.read_text(encoding="utf-8")), encoding="utf-8")
    return path


def mypy(*paths: Path) -> dict[str, set[int]]:
    command = [sys.executable, "-m", "mypy", "--no-error-summary", "--hide-error-context", "--no-pretty"]
    done = subprocess.run([*command, *map(str, paths)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert not done.stderr, done.stderr
    found: dict[str, set[int]] = {}
    for name, number in re.findall(r"^(.+?):(\d+): error:", done.stdout, re.MULTILINE):
        found.setdefault(Path(name).name, set()).add(int(number))
    return found


def pyright(*paths: Path) -> dict[str, set[int]]:
    command = [str(Path(sysconfig.get_path("scripts"), "pyright")), "--pythonpath", sys.executable, "--outputjson"]
    done = subprocess.run([*command, *map(str, paths)], cwd=ROOT, capture_output=True, text=True, check=False)
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] >= len(paths), done.stdout
    found: dict[str, set[int]] = {}
    for one in report["generalDiagnostics"]:
        if one["severity"] == "error":
            found.setdefault(Path(one["file"]).name, set()).add(one["range"]["start"]["line"] + 1)
    return found


@pytest.mark.parametrize("checker", [mypy, pyright])
def test_the_right_ones_pass_and_every_wrong_one_is_refused(checker: Checker, bare: Path) -> None:
    found = checker(RIGHT, bare)

    assert found.get(RIGHT.name, set()) == set()
    expected = mistakes()
    missed = sorted(name for number, name in expected.items() if number not in found.get(WRONG.name, set()))
    assert missed == []
    assert found[WRONG.name] <= expected.keys()  # and nothing else is


def test_there_are_twenty_of_each_and_each_wrong_one_holds_one_mistake() -> None:
    wrong = [snippet.name for snippet in snippets(WRONG) if not snippet.decorator_list]

    assert len(snippets(RIGHT)) >= 20
    assert len(wrong) >= 20
    assert sorted(mistakes().values()) == sorted(wrong)


def test_they_can_be_imported() -> None:
    """What is right must also run as far as it goes: names that no longer exist show here."""
    command = [sys.executable, "-W", "error", "-c", "import tests.typing.right_use, tests.typing.wrong_use"]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
