"""Rules of the house that no linter holds for us, in every file of the project."""

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "millrace"

# The brackets keep the patterns from finding themselves.
FROM_ONE_MACHINE = re.compile(
    r"""
      (?<![\w.-]) / (?: [h]ome | [U]sers ) / \w   # somebody's home
    | (?<![\w.-]) / [r]oot /
    | [A-Z]:\\+[U]sers\\
    | [f]ile:///\w+/ .* /simple                   # a package index, wherever it is
    | [p]ypi\.org | [p]ythonhosted\.org | registry\.[n]pmjs | deb\.[d]ebian\.org
    | --(?:extra-)?[i]ndex-url | \b(?:UV|PIP)_(?:EXTRA_)?[I]NDEX
    """,
    re.VERBOSE,
)
UNFINISHED = re.compile(r"\b(?:TODO|FIXME|XXX|HACK)\b")
RUNS_DATA_AS_CODE = {"_pickle", "cloudpickle", "dill", "jsonpickle", "marshal", "pickle", "shelve"}


def test_no_file_tells_on_which_machine_it_was_written():
    found = [
        f"{file.relative_to(ROOT)}:{number}: {line.strip()[:120]}"
        for file in project_files()
        for number, line in lines(file)
        if FROM_ONE_MACHINE.search(line) or str(ROOT) + "/" in line
    ]

    assert found == []


def test_the_source_is_finished():
    found = [
        f"{file.relative_to(ROOT)}:{number}: {line.strip()}"
        for file in project_files()
        if file.is_relative_to(SOURCE)
        for number, line in lines(file)
        if UNFINISHED.search(line)
    ]

    assert found == []


def test_the_source_never_runs_data_as_code():
    files = sorted(SOURCE.rglob("*.py"))

    found = [
        f"{file.relative_to(ROOT)}:{number}: {what}"
        for file in files
        for number, what in dangers(ast.parse(file.read_bytes()))
    ]

    assert files
    assert found == []


def test_the_scan_sees_every_way_to_run_data_as_code():
    text = """
import pickle
import marshal as m
from shelve import open
from yaml import load
import yaml; yaml.load(x)
eval("1")
exec("1")
redis.eval("return 1")
yaml.safe_load(x)
"""
    assert [number for number, _ in dangers(ast.parse(text))] == [2, 3, 4, 5, 6, 7, 8]


def dangers(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and name of everything in a file that could turn stored data into running code."""
    found: set[tuple[int, str]] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                modules = {alias.name.partition(".")[0] for alias in names}
                found |= {(node.lineno, name) for name in modules & RUNS_DATA_AS_CODE}
            case ast.ImportFrom(module=str(module)) if module.partition(".")[0] in RUNS_DATA_AS_CODE:
                found.add((node.lineno, module))
            case ast.ImportFrom(module="yaml", names=names) if any(alias.name == "load" for alias in names):
                found.add((node.lineno, "yaml.load"))
            case ast.Attribute(value=ast.Name(id="yaml"), attr="load"):
                found.add((node.lineno, "yaml.load"))
            case ast.Name(id="eval" | "exec" as name):
                found.add((node.lineno, name))
    yield from sorted(found)


def project_files() -> list[Path]:
    """What git tracks or would track; in an unpacked release, which has no git, every file."""
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        done = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True)
        files = [ROOT / name for name in done.stdout.split("\0") if name]
    except (FileNotFoundError, subprocess.CalledProcessError):
        files = [file for file in ROOT.rglob("*") if not hidden(file)]
    return sorted(file for file in files if file.is_file())


def hidden(file: Path) -> bool:
    return any(part.startswith(".") or part == "__pycache__" for part in file.relative_to(ROOT).parts)


def lines(file: Path) -> Iterator[tuple[int, str]]:
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return  # a picture, not a text
    yield from enumerate(text.splitlines(), start=1)
