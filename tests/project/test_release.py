"""What is published: the contents and the metadata of wheel and source distribution, and the rules around them."""

from __future__ import annotations

import email
import json
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from email.message import Message
from pathlib import Path
from typing import Any

import msgspec
import yaml

import millrace
from tests.cli.process import Shell, ended, eventually
from tests.project.test_house import project_files
from tools.install_part import of_extras
from tools.release import URLS, problems

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
PYTHONS = ["3.11", "3.12", "3.13", "3.14"]
# A command that would install `millrace` from an index, where the name may be another project's.
FROM_AN_INDEX = re.compile(
    r"\b(?:pip|uv|pipx|poetry|pdm|conda)\b[^\n#]*\b(?:install|add|run)\b[^\n#]*['\" ]millrace(?![\w./-])"
)


# Frameworks with a classifier, and what the package has for them.
CLAIMED = {
    "Apache Airflow :: Provider": "contrib/airflow",
    "AsyncIO": "app",
    "Django": "contrib/django",
    "FastAPI": "contrib/fastapi",
    "Flask": "contrib/flask",
    "Pytest": "testing/plugin",
}


def metadata_of(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return email.message_from_bytes(archive.read(name))


# ── contents ──────────────────────────────────────────────────────────────────────────────────


def test_the_wheel_has_every_file_of_the_packages_and_nothing_else(wheel: Path):
    files = {path for path in (ROOT / "src").rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    with zipfile.ZipFile(wheel) as archive:
        inside = {name for name in archive.namelist() if ".dist-info/" not in name}

    assert inside == {path.relative_to(ROOT / "src").as_posix() for path in files}


def test_the_source_distribution_is_enough_to_run_the_tests_and_build_the_docs(dist: Path):
    with tarfile.open(next(dist.glob("*.tar.gz"))) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}

    kept = [path.relative_to(ROOT).as_posix() for path in project_files()]
    assert len(kept) > 500
    assert [name for name in kept if name not in inside] == []


def test_the_metadata_says_what_is_true(wheel: Path):
    metadata = metadata_of(wheel)
    classifiers = metadata.get_all("Classifier") or []

    assert metadata["Name"] == "millrace" and metadata["Version"] == millrace.__version__
    assert metadata["Requires-Python"] == ">=3.11" and metadata["License-Expression"] == "Apache-2.0"
    assert {*(metadata.get_all("Provides-Extra") or [])} == {*PROJECT["project"]["optional-dependencies"]}
    assert "dev" not in PROJECT["project"]["optional-dependencies"]
    assert re.findall(r"Python :: (3\.\d+)", "\n".join(classifiers)) == PYTHONS
    for name, place in CLAIMED.items():
        code = ROOT / "src/millrace" / place
        assert (f"Framework :: {name}" in classifiers) == (code.is_dir() or code.with_suffix(".py").is_file()), name
    core = [one for one in metadata.get_all("Requires-Dist") or [] if "extra ==" not in one]
    assert core == ["msgspec>=0.19"]


def test_the_version_is_written_in_one_place():
    assert PROJECT["project"]["dynamic"] == ["version"] and "version" not in PROJECT["project"]
    assert (ROOT / PROJECT["tool"]["hatch"]["version"]["path"]).read_text("utf-8").count(millrace.__version__) == 1


# ── installed ─────────────────────────────────────────────────────────────────────────────────


def test_the_wheel_alone_runs_a_worker(wheel: Path, tmp_path: Path):
    """With the one package of the core, and without an index: tests/project/test_extras.py installs the extras."""
    home = tmp_path / "environment"
    venv.create(home)
    python = home / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*install, str(wheel)], check=True)
    [packages] = home.glob("lib/python*/site-packages")
    assert msgspec.__file__ is not None
    (packages / "msgspec").symlink_to(Path(msgspec.__file__).parent)
    shell = Shell(tmp_path)
    shell.run("init")
    shell.run("submit", "send_email", '{"to": "ada"}', "--id", "x")
    (tmp_path / "shop.py").write_text((ROOT / "tests/cli/shop.py").read_text("utf-8"), "utf-8")
    environment = {**shell.environ, "MILLRACE_APP": "shop:app", "PYTHONPATH": ""}

    command = [str(home / "bin" / "millrace"), "worker"]
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True) as worker:
        eventually(lambda: json.loads(shell.run("status", "x", "--json").stdout)["state"] == "completed")
        worker.terminate()
        assert ended(worker)[0] == 0


# ── the rules around a release ────────────────────────────────────────────────────────────────


def test_nobody_is_told_to_install_millrace_from_an_index():
    found = [
        f"{file.relative_to(ROOT)}: {match[0]}"
        for file in project_files()
        if file.name not in (Path(__file__).name, "test_extras.py")
        for match in FROM_AN_INDEX.finditer(file.read_text("utf-8", "replace"))
    ]

    assert found == []
    assert FROM_AN_INDEX.search("pip install 'millrace[redis]'") and FROM_AN_INDEX.search("uv add millrace")
    assert not FROM_AN_INDEX.search("pip install '.[redis]'") and not FROM_AN_INDEX.search("pip install millrace/")


def test_a_release_is_refused_until_everything_is_in_place():
    version = "1.2.3"
    files = {f"millrace-{version}-py3-none-any.whl", f"millrace-{version}.tar.gz", f"millrace-{version}.cdx.json"}
    project: dict[str, Any] = {"urls": dict.fromkeys(URLS, "https://jobs.example.com")}
    changes = "## [Unreleased]\n\n## [1.2.3] - 2027-01-31\n"

    assert list(problems(version, project, changes, files, ["v1.2.3"])) == []
    assert len(list(problems(version, {}, changes, files, []))) == 1
    assert len(list(problems(version, project, "## [1.2.2] - 2027-01-31\n", files, []))) == 1
    assert len(list(problems(version, project, changes, files - {f"millrace-{version}.cdx.json"}, []))) == 1
    assert len(list(problems(version, project, changes, files, ["v1.2.4"]))) == 1


def test_the_sbom_names_the_runtime_packages_and_no_tools(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-m", "tools.sbom", str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    bill = json.loads(next(tmp_path.glob("*.cdx.json")).read_text("utf-8"))
    names = {one["name"] for one in bill["components"]}
    wanted = {re.split(r"[\[<>=; ]", one)[0] for one in of_extras(PROJECT, ["all"])}

    assert bill["bomFormat"] == "CycloneDX" and bill["metadata"]["component"]["name"] == "millrace"
    assert bill["metadata"]["component"]["version"] == millrace.__version__
    assert names >= wanted | {"msgspec"} and all(one["version"] for one in bill["components"])
    assert not names & {"pytest", "mypy", "ruff", "mkdocs", "millrace"}


# ── workflows and hooks ───────────────────────────────────────────────────────────────────────


def workflow(name: str) -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load((ROOT / ".github" / "workflows" / name).read_text("utf-8"))
    return read


def steps() -> Iterator[tuple[str, dict[str, Any]]]:
    for file in sorted((ROOT / ".github" / "workflows").glob("*.yml")):
        for job in workflow(file.name)["jobs"].values():
            assert job["timeout-minutes"], file.name
            for step in job["steps"]:
                yield file.name, step


def test_workflows_run_what_make_runs():
    makefile = (ROOT / "Makefile").read_text("utf-8")
    lines = [(name, step["run"]) for name, step in steps() if "run" in step]

    for name, line in lines:
        if line.startswith("gh release create"):
            continue
        found = re.fullmatch(r"make ([\w-]+)(?: PYTHON=python)?", line)
        assert found, f"{name}: {line}"
        assert re.search(rf"^{found[1]}:", makefile, re.MULTILINE), line
    assert {line for name, line in lines if name == "release.yml"} >= {"make test", "make release"}


def test_workflows_test_every_python_that_the_package_claims():
    assert workflow("test.yml")["jobs"]["test"]["strategy"]["matrix"]["python"] == PYTHONS


def test_only_the_jobs_that_publish_may_write_and_no_secret_is_stored():
    for name in ("test.yml", "docs.yml", "release.yml"):
        assert workflow(name)["permissions"] == {"contents": "read"}
        assert "secrets." not in (ROOT / ".github" / "workflows" / name).read_text("utf-8")
    release = workflow("release.yml")["jobs"]
    assert release["publish"]["permissions"] == {"id-token": "write"} and release["publish"]["environment"] == "pypi"
    assert release["publish"]["needs"] == "build" and "permissions" not in release["build"]


def test_hooks_before_a_commit_run_the_locked_tools():
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text("utf-8"))["repos"]
    makefile = (ROOT / "Makefile").read_text("utf-8")

    assert [repo["repo"] for repo in hooks] == ["local"]
    for hook in hooks[0]["hooks"]:
        program, *words = hook["entry"].split()
        assert hook["language"] == "system"
        assert program == ".venv/bin/ruff" or (
            program == "make" and re.search(rf"^{words[0]}:", makefile, re.MULTILINE)
        )
