"""The README is true: its programs run, and print what it says they print."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
OUTPUT = re.findall(r"```text\n(.*?)```", README, re.DOTALL)


def printed(program: str, where: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=where,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("store", ["memory://", "sqlite:///jobs.db"])
def test_the_first_program_prints_what_the_readme_says(tmp_path, store):
    program = PROGRAMS[0].replace("sqlite:///jobs.db", store)

    assert printed(program, tmp_path) == OUTPUT[0]


def test_the_second_program_prints_what_its_comments_say(tmp_path):
    said = re.findall(r"print\(.*\)  # (\w+)", PROGRAMS[1])

    assert len(PROGRAMS) == 2
    assert printed(PROGRAMS[1], tmp_path).split() == said


def test_every_make_target_the_readme_names_exists():
    targets = re.findall(r"^make (\w+)", README, re.MULTILINE)
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")

    assert targets
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)
