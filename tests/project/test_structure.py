"""The structure of the project: folder sizes, names that mean one thing, and a map that is true."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "millrace"
MOST_MODULES = 25
SUITES = {SOURCE / "testing" / "conformance"}  # a list of test modules, not code to find one's way in

# Names that a newcomer could not have guessed, and what replaced them.
OLD_NAMES = {
    *("given", "taken", "house", "together", "glance", "patience", "stopping"),  # web
    *("ways", "staff", "crew", "deeds", "words", "shape", "facts"),  # worker, views
    *("talk", "question", "desk", "again", "shelf", "bell", "home", "standoff", "lookout", "turn", "trouble"),  # stores
    *("herd", "course"),  # stores
    *("act", "look", "typed", "agreed", "of_objects"),  # cli
}

# Words that say less than the term of the field: another process, notified, again, cached, an action, an error.
PRIVATE_WORDS = re.compile(
    r"(?<![a-z])(somebody|everybody|whoever|anew|at[ _]hand|(un)?told|told_of|tells? of|tell_of_\w+|takes? along"
    r"|taken along|troubles?|stirs?|stirred|deeds?|patiently)(?![a-z])",
    re.IGNORECASE,
)
PRIVATE_CLASSES = {"Home", "Turn", "Desk", "Desks", "Herd", "Again", "Lookout", "Trouble", "Course", "Deed"}
TEXTS = {".py", ".sql", ".lua", ".js", ".css", ".html"}


def test_no_folder_has_more_modules_than_a_reader_can_take_in():
    folders: defaultdict[Path, list[str]] = defaultdict(list)
    for file in SOURCE.rglob("*.py"):
        if file.name != "__init__.py" and file.parent not in SUITES:
            folders[file.parent].append(file.name)

    assert {str(folder): len(files) for folder, files in folders.items() if len(files) > MOST_MODULES} == {}


def test_every_package_says_what_lives_in_it():
    silent = [
        str(file) for file in SOURCE.rglob("__init__.py") if not ast.get_docstring(ast.parse(file.read_text("utf-8")))
    ]

    assert silent == []


def test_no_module_has_a_private_name_of_old():
    assert sorted(str(file) for file in SOURCE.rglob("*.py") if file.stem in OLD_NAMES) == []


def test_no_text_or_name_uses_a_private_word():
    found = [
        f"{file.relative_to(SOURCE)}:{number}: {line.strip()[:100]}"
        for file in sorted(SOURCE.rglob("*"))
        if file.suffix in TEXTS and file.parent not in SUITES
        for number, line in enumerate(file.read_text("utf-8").splitlines(), start=1)
        if PRIVATE_WORDS.search(line)
    ]

    assert found == []


def test_no_class_has_a_private_name_of_old():
    found = [
        f"{file.relative_to(SOURCE)}: {node.name}"
        for file in sorted(SOURCE.rglob("*.py"))
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.ClassDef) and node.name in PRIVATE_CLASSES
    ]

    assert found == []


def test_a_public_class_name_means_one_thing():
    """Across packages. Parts of a backend are known to that backend alone, and may be named like those of others."""
    places: defaultdict[str, list[Path]] = defaultdict(list)
    backends = [folder for folder in (SOURCE / "store").iterdir() if folder.is_dir()]
    for file in SOURCE.rglob("*.py"):
        if any(file.is_relative_to(backend) for backend in backends):
            continue
        for node in ast.parse(file.read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(file.relative_to(SOURCE))
    twice = {name: sorted(map(str, files)) for name, files in places.items() if len(files) > 1}

    assert twice == {}


def test_the_map_names_places_that_exist():
    for page in ("ARCHITECTURE.md", "CONTRIBUTING.md"):
        text = (ROOT / page).read_text("utf-8")
        named = re.findall(r"`((?:[a-z_]+/)+(?:[a-z_]+\.[a-z]+)?)`", text)
        assert named, f"{page} names no place"
        missing = [path for path in named if not (ROOT / path).exists() and not (SOURCE / path).exists()]
        in_store = [path for path in missing if not any((SOURCE / "store").glob(f"*/{path}"))]
        assert in_store == [], f"{page} names what is not there: {in_store}"
