"""Of which commit figures are: what a run says of itself, and whether the tables in the documentation say it, too.

A table in docs/benchmarks.md follows a comment `<!-- figures of COMMIT: PATH … -->`. It names the commit that was
measured, and the code that the figures depend on.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.lab.environment import ROOT

DOCS = ROOT / "docs" / "benchmarks.md"
COMMENT = re.compile(r"<!-- figures of (\S+): ([^>]*?) -->\n(.*?)(?=\n<!-- figures of |\n#|\Z)", re.DOTALL)
OLDER = "older than the code"


def of_run(jobs: int, rounds: int, load: float, versions: Mapping[str, str]) -> dict[str, Any]:
    """Asked before the run: the commit of the working tree may change while it goes on."""
    return {
        "commit": git("describe", "--always", "--dirty") or "unknown",
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "load": load,
        "cores": os.cpu_count(),
        "jobs": jobs,
        "rounds": rounds,
        "versions": {"Python": platform.python_version(), **versions},
    }


class Table(NamedTuple):
    commit: str
    paths: list[str]
    text: str  # up to the next table or heading


def tables(text: str) -> Iterator[Table]:
    for commit, paths, following in COMMENT.findall(text):
        yield Table(commit, paths.split(), following)


def check_docs(docs: Path = DOCS) -> list[str]:
    """What is wrong with the tables of a document: older than their code without saying so, or of no known commit."""
    found = []
    for table in tables(docs.read_text(encoding="utf-8")):
        since = git("rev-list", "--count", f"{table.commit}..HEAD", "--", *table.paths)
        if since is None:
            found.append(f"{table.commit}: git does not know this commit")
        elif int(since) and OLDER not in table.text:
            found.append(
                f"{table.commit}: {since} commits have changed {' '.join(table.paths)} since. "
                f'Measure again, or let the text of the table say "{OLDER}"'
            )
    return found


def git(*arguments: str) -> str | None:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None
