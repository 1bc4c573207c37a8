"""Settings: a flag, the environment, pyproject.toml, a default; and `millrace config` says which it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace import InvalidInput
from millrace.app.settings import SETTINGS, load_settings, masked
from tests.cli.stage import Stage


def written(folder: Path, text: str) -> Path:
    (folder / "pyproject.toml").write_text(text)
    return folder


def test_the_nearest_to_the_command_wins(tmp_path: Path):
    folder = written(tmp_path, "[tool.millrace]\nslots = 3\nqueues = ['a', 'b']\n")

    def slots(flags: dict[str, str], environ: dict[str, str]) -> tuple[object, str]:
        settings = load_settings(flags, environ, folder)
        return settings["slots"], settings.origin("slots")

    assert slots({"slots": "1"}, {"MILLRACE_SLOTS": "2"}) == (1, "flag")
    assert slots({}, {"MILLRACE_SLOTS": "2"}) == (2, "environment")
    assert slots({}, {"MILLRACE_SLOTS": ""}) == (3, "pyproject.toml")
    assert load_settings({}, {}, tmp_path.parent)["slots"] == 10
    assert load_settings({}, {}, folder)["queues"] == ("a", "b")


def test_pyproject_is_found_from_a_folder_below_and_its_database_lies_beside_it(tmp_path: Path):
    written(tmp_path, '[tool.millrace]\nurl = "sqlite:///jobs.db"\n')
    below = tmp_path / "src" / "shop"
    below.mkdir(parents=True)
    written(tmp_path / "src", "[project]\nname = 'another'\n")

    settings = load_settings({}, {}, below)

    assert settings["url"] == f"sqlite:///{tmp_path}/jobs.db"
    assert settings.project == tmp_path


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[tool.millrace]\nslot = 3\n", "Did you mean 'slots'?"),
        ("[tool.millrace]\nslots = 'many'\n", "whole number"),
        ("[tool.millrace]\nslots = true\n", "whole number"),
        ("[tool.millrace]\nslots = 0\n", "from 1 to"),
        ("[tool.millrace]\ngrace = -1\n", "grace"),
        ("[tool.millrace]\nqueues = 'a b'\n", "queue name"),
        ("[tool.millrace]\nqueues = 7\n", "names"),
        ("[tool.millrace]\nlog_level = 'loud'\n", "one of"),
        ("[tool.millrace]\nurl = 7\n", "text"),
        ("[tool]\nmillrace = 7\n", "table"),
        ("[tool.millrace\n", "cannot be read"),
    ],
)
def test_what_is_wrong_in_pyproject_is_said(tmp_path: Path, text: str, words: str):
    with pytest.raises(InvalidInput, match=words):
        load_settings({}, {}, written(tmp_path, text))


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://ada:secret@db:5432/jobs?sslmode=require", "postgresql://ada:***@db:5432/jobs?sslmode=require"),
        ("redis://:secret@h/0", "redis://:***@h/0"),
        ("s3://bucket/a?secret_key=secret&region=eu", "s3://bucket/a?secret_key=***&region=eu"),
        ("sqlite:///jobs.db", "sqlite:///jobs.db"),
        ("sqlite:////var/lib/jobs.db?durability=relaxed", "sqlite:////var/lib/jobs.db?durability=relaxed"),
        ("memory://", "memory://"),
        ("memory://name", "memory://name"),
        ("redis://ada:se/c?r@et@h", "redis://ada:***@h"),
        ("jobs.db", "jobs.db"),
    ],
)
def test_a_password_is_never_shown(url: str, shown: str):
    assert masked(url) == shown


def test_config_shows_every_setting_with_its_origin(bare: Stage, monkeypatch: pytest.MonkeyPatch):
    Path("pyproject.toml").write_text("[tool.millrace]\nslots = 3\n")
    monkeypatch.setenv("MILLRACE_URL", "redis://ada:secret@h/0")
    monkeypatch.setenv("MILLRACE_SOLTS", "5")

    ran = bare("config", "--app", "x:y", "--json")

    found = {row["name"]: (row["value"], row["origin"]) for row in ran.json["settings"]}
    assert found.keys() == SETTINGS.keys()
    assert found["url"] == ("redis://ada:***@h/0", "environment")
    assert found["app"] == ("x:y", "flag")
    assert found["slots"] == (3, "pyproject.toml")
    assert found["grace"] == (3.0, "default")
    assert ran.json["unknown_variables"] == ["MILLRACE_SOLTS"]
    assert "secret" not in ran.out + ran.err + bare("config").out


def test_settings_of_pyproject_are_used_by_commands(bare: Stage):
    Path("pyproject.toml").write_text('[tool.millrace]\nurl = "sqlite:///here.db"\napp = "tests.cli.shop:app"\n')
    bare("init")
    bare("submit", "send_email", '{"to": "ada"}', "--id", "x")

    assert Path("here.db").exists()
    assert bare("status", "x", "--json").json["queue"] == "mail"  # so the app was asked


def test_a_mistake_in_pyproject_stops_every_command_with_words(bare: Stage):
    Path("pyproject.toml").write_text("[tool.millrace]\nurls = 'x'\n")

    ran = bare.refused("queues")

    assert ran.code == 2 and "Did you mean 'url'?" in ran.err
