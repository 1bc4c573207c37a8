"""The same task modules on the real Celery and on Millrace: every call returns the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.contrib.celery_outcomes import as_celery
from tests.contrib.environment import ROOT, python_with

PROGRAM = Path(__file__).parent / "celery_outcomes.py"


def outcomes(python: str, kind: str) -> Any:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [python, str(PROGRAM), kind], env=env, capture_output=True, text=True, timeout=580, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_the_modules_do_on_millrace_what_they_do_on_celery() -> None:
    assert outcomes(sys.executable, "millrace") == outcomes(str(python_with("celery")), "celery")


@pytest.mark.slow
def test_the_outcomes_are_those_of_the_tasks() -> None:
    found = outcomes(sys.executable, "millrace")

    assert (found["first_steps"]["a call"], found["mailing"]["autoretry"]) == (5, 3)
    assert found["pipeline"]["album"] == {"title": "summer", "pictures": ["raw a at 64", "raw b at 64"]}
    assert sum(map(len, found.values())) > 40


def test_the_imports_of_a_module_are_changed_back() -> None:
    text = "from millrace.contrib.celery import Celery, get_task_logger\n"
    text += "from millrace.contrib.celery.exceptions import Ignore\n"

    changed = "from celery import Celery\nfrom celery.utils.log import get_task_logger\n"
    assert as_celery(text) == changed + "from celery.exceptions import Ignore\n"
