"""Settings of object stores (O-30): names and aliases, bad values; and flags and pyproject.toml reach the store."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from millrace import InvalidInput
from millrace.app.settings import SETTINGS, load_settings
from millrace.cli.output import Output
from millrace.cli.session import CommandSession
from millrace.domain.request import WorkerInfo
from millrace.store.connect import connect
from millrace.store.object.directory import DirectoryBlobs
from millrace.store.object.keys import MARKERS
from millrace.store.object.opening import LOCAL_FEED_DELAY
from millrace.store.object.options import ObjectOptions, bucket_environment, object_options
from millrace.store.object.store import ObjectStore
from millrace.store.variables import OBJECT_SETTINGS, shards_of, shards_text
from tests.cli.stage import Stage

SHOP = ("--app", "tests.cli.shop:app")
QO = {
    "QO_INDEX_MODE": ("log-scan", "index_mode", "log-scan"),
    "QO_READY_PAGE_SIZE": ("7", "ready_page_size", 7),
    "QO_LOG_SCAN_PAGE_SIZE": ("8", "log_scan_page_size", 8),
    "QO_NO_MONITOR": ("true", "monitor", False),
    "QO_MONITOR_CHECK_INTERVAL": ("10", "monitor_check_interval", 10_000),
    "QO_MONITOR_WORKER_HEALTH_THRESHOLD": ("2m", "monitor_worker_health_threshold", 120_000),
    "QO_MONITOR_SWEEP_INTERVAL": ("0", "monitor_sweep_interval", 0),
    "QO_MONITOR_SWEEP_PAGE_SIZE": ("9", "monitor_sweep_page_size", 9),
    "QO_MAX_CLOCK_SKEW_MS": ("500", "max_clock_skew", 500),
}


@pytest.mark.parametrize("name", QO)
def test_the_names_of_o_30_and_ours_say_the_same(name: str):
    text, field, value = QO[name]
    ours = name.replace("QO_", "MILLRACE_")

    assert getattr(object_options({name: text}), field) == value
    assert getattr(object_options({ours: text}), field) == value
    assert getattr(object_options({ours: text, name: "1"}), field) == value  # ours counts
    assert getattr(object_options({}), field) == getattr(ObjectOptions(), field) != value


@pytest.mark.parametrize(
    ("name", "text", "field", "value"),
    [
        ("MILLRACE_SHARDS", "0-3,a", "shards", ("0", "1", "2", "3", "a")),
        ("MILLRACE_SHARD_DIGITS", "2", "shard_digits", 2),
        ("MILLRACE_INLINE_LIMIT", "1_000", "inline_limit", 1_000),
        ("MILLRACE_FEED_DELAY_MS", "5", "feed_delay", 5),
        ("MILLRACE_LOCK_PATIENCE_MS", "5", "lock_patience", 5),
    ],
)
def test_our_own_settings(name: str, text: str, field: str, value: Any):
    assert getattr(object_options({name: text}), field) == value


def test_the_defaults_are_those_of_o_30():
    """100, 50, 30 s, 60 s, 300 s, 1000; and what `millrace config` shows as a default is what the store does."""
    options = object_options({})

    assert (options.ready_page_size, options.log_scan_page_size, options.monitor) == (100, 50, True)
    assert options.monitor_check_interval == 30_000 and options.monitor_worker_health_threshold == 60_000
    assert options.monitor_sweep_interval == 300_000 and options.monitor_sweep_page_size == 1_000
    for setting in OBJECT_SETTINGS:
        if setting.field and setting.default is not None and setting.field != "no_monitor":
            assert getattr(options, setting.field) == setting.default * (setting.scale or 1), setting.name


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("QO_INDEX_MODE", "fast"),
        ("MILLRACE_READY_PAGE_SIZE", "0"),
        ("QO_READY_PAGE_SIZE", "1001"),
        ("MILLRACE_LOG_SCAN_PAGE_SIZE", "many"),
        ("QO_NO_MONITOR", "perhaps"),
        ("MILLRACE_MONITOR_CHECK_INTERVAL", "0"),
        ("MILLRACE_MONITOR_CHECK_INTERVAL", "-1"),
        ("MILLRACE_MONITOR_SWEEP_INTERVAL", "two days"),
        ("MILLRACE_MAX_CLOCK_SKEW_MS", "1.5"),
        ("MILLRACE_SHARDS", "0-"),
        ("MILLRACE_SHARDS", "f-0"),
        ("MILLRACE_SHARDS", "G"),
        ("MILLRACE_SHARDS", "00"),
        ("MILLRACE_SHARD_DIGITS", "4"),
        ("QO_ALLOW_NO_VERSIONING", "maybe"),
    ],
)
def test_a_bad_value_is_an_error_that_names_its_variable(name: str, text: str):
    with pytest.raises(InvalidInput, match=name):
        object_options({name: text})


def test_a_directory_stays_less_behind_with_its_feed_unless_told_otherwise(tmp_path: Path):
    url = f"file://{tmp_path}/jobs"

    assert connect(url, env={}).options.feed_delay == LOCAL_FEED_DELAY  # type: ignore[attr-defined]
    assert connect(url, env={"MILLRACE_FEED_DELAY_MS": "9"}).options.feed_delay == 9  # type: ignore[attr-defined]
    assert connect("s3://b", env={}).options.feed_delay == 60_000  # type: ignore[attr-defined]


def test_a_bucket_may_be_named_by_the_environment_alone():
    env = {"S3_ENDPOINT": "http://127.0.0.1:9", "S3_BUCKET": "jobs", "S3_REGION": "eu-central-1"}
    assert connect("s3:///", env=env).url == "s3://jobs?endpoint=http://127.0.0.1:9&region=eu-central-1"

    ours = {f"MILLRACE_{name}": value for name, value in env.items()}
    assert connect("s3:///", env={**ours, "S3_BUCKET": "other"}).url == connect("s3:///", env=env).url
    assert bucket_environment(env) is env
    with pytest.raises(InvalidInput, match="bucket"):
        connect("s3:///", env={})


def test_the_url_of_a_store_leads_to_it_again(tmp_path: Path):
    for url in (f"file://{tmp_path}/jobs?durability=relaxed", "s3://b?endpoint=http://h:1&addressing=virtual"):
        assert connect(url, env={}).url == url
        assert connect(connect(url, env={}).url, env={}).url == url


def test_config_shows_where_each_came_from_and_calls_none_a_stranger(bare: Stage, monkeypatch: pytest.MonkeyPatch):
    for setting in OBJECT_SETTINGS:
        assert SETTINGS[setting.name].env == setting.env and setting.env.startswith("MILLRACE_")
    monkeypatch.setenv("QO_READY_PAGE_SIZE", "7")
    monkeypatch.setenv("MILLRACE_MONITOR_SWEEP_INTERVAL", "0")
    monkeypatch.setenv("S3_ENDPOINT", "http://ada:secret@h:1")
    Path("pyproject.toml").write_text("[tool.millrace]\nshards = ['0', '1']\nno_monitor = true\n")

    ran = bare("config", "--json")

    found = {row["name"]: (row["value"], row["origin"], row["where"]) for row in ran.json["settings"]}
    assert found["ready_page_size"] == (7, "environment", "QO_READY_PAGE_SIZE")
    assert found["monitor_sweep_interval"] == (0.0, "environment", "MILLRACE_MONITOR_SWEEP_INTERVAL")
    assert found["shards"][:2] == (["0", "1"], "pyproject.toml")
    assert found["no_monitor"][:2] == (True, "pyproject.toml")
    assert found["index_mode"][:2] == ("hybrid", "default")
    assert ran.json["unknown_variables"] == [] and "secret" not in ran.out


def test_a_mistake_in_the_environment_stops_a_command_with_words(bare: Stage, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("QO_MONITOR_SWEEP_PAGE_SIZE", "all")

    ran = bare.refused("list", "--url", "memory://")

    assert ran.code == 2 and "QO_MONITOR_SWEEP_PAGE_SIZE" in ran.err


def test_pyproject_and_flags_reach_the_store(bare: Stage, tmp_path: Path):
    """Shards by pyproject.toml, and a flag that wins over them: only jobs of the flag's shards are taken (O-31)."""
    Path("pyproject.toml").write_text(f'[tool.millrace]\nurl = "file://{tmp_path}/jobs"\nshards = "0-7"\n')
    bare("init")
    low, high = "1" * 8 + "-1111-4111-8111-" + "1" * 12, "a" * 8 + "-1111-4111-8111-" + "1" * 12
    for job in (low, high):
        bare("submit", "pack", "--id", job, *SHOP)

    bare("worker", "--burst", *SHOP)
    assert {row["id"]: row["state"] for row in bare("list").rows} == {low: "completed", high: "ready"}
    assert [row["id"] for row in bare("list", "--shard", "a").rows] == [high]
    assert [row["id"] for row in bare("list", "--shard", "1", "--status", "completed").rows] == [low]
    assert bare("list", "--shard", "2").rows == []

    bare("worker", "--burst", "--shards", "a,b", "--id", "w", *SHOP)
    assert bare("status", high, "--json").json["state"] == "completed"


def test_workers_shows_the_shards_that_each_claims(bare: Stage, tmp_path: Path):
    """O-31"""
    Path("pyproject.toml").write_text(f'[tool.millrace]\nurl = "file://{tmp_path}/jobs"\n')
    bare("init")

    async def beat() -> None:
        for name, shards in (("some", ("0", "1", "2", "a")), ("every", None)):
            options = ObjectOptions(shards=shards)
            store = ObjectStore(lambda: DirectoryBlobs(tmp_path / "jobs", markers=MARKERS), options=options)
            await store.connect()
            await store.beat(WorkerInfo(name), 60_000)
            await store.close()

    asyncio.run(beat())

    assert {row["id"]: row["shards"] for row in bare("workers").rows} == {"some": "0-2,a", "every": "all"}


@pytest.mark.parametrize("text", ["0", "0-7", "0-2,a", "0,2,4", "00-0f,1a"])
def test_shards_are_shown_as_they_are_written(text: str):
    assert shards_text(shards_of("--shards", text)) == text


def test_a_bucket_that_is_named_alone_is_the_store(tmp_path: Path):
    alone = load_settings({}, {"S3_BUCKET": "jobs"}, tmp_path)
    assert (alone["url"], alone.values["url"].where) == ("s3:///", "S3_BUCKET")
    assert connect(alone["url"], env={"S3_BUCKET": "jobs"}).url == "s3://jobs"
    assert load_settings({}, {"S3_BUCKET": "jobs", "MILLRACE_URL": "memory://"}, tmp_path)["url"] == "memory://"
    assert load_settings({}, {"S3_BUCKET": "jobs", "MILLRACE_APP": "a:b"}, tmp_path)["url"] is None
    assert load_settings({}, {}, tmp_path)["url"] is None


def test_a_bucket_that_is_named_alone_is_the_store_of_an_app_that_names_none(
    bare: Stage, monkeypatch: pytest.MonkeyPatch
):
    Path("none_named.py").write_text("from millrace import App\napp = App()\n")
    Path("named.py").write_text("from millrace import App\napp = App('memory://own')\n")
    monkeypatch.setenv("S3_BUCKET", "jobs")

    def url(app: str) -> str:
        session = CommandSession({"app": app}, Output(False))
        return str(session.app().store.url)

    assert url("none_named:app") == "s3://jobs"
    assert url("named:app") == "memory://own"


def test_an_environment_that_is_given_is_asked_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MILLRACE_READY_PAGE_SIZE", "3")

    assert load_settings({}, {}, tmp_path)["ready_page_size"] == 100
    assert connect(f"file://{tmp_path}/jobs").options.ready_page_size == 3  # type: ignore[attr-defined]


def test_what_is_for_object_stores_is_refused_elsewhere(bare: Stage):
    bare("init")
    url = ("--url", "sqlite:///jobs.db")

    for flags in (("--shards", "1"), ("--index-mode", "hybrid")):
        ran = bare.refused("worker", "--burst", *flags, *url, *SHOP)
        assert ran.code == 2 and flags[0] in ran.err and "sqlite://" in ran.err
    assert "no shards" in bare.refused("list", "--shard", "1", *url).err


def test_a_shard_that_is_none_is_told(bare: Stage, tmp_path: Path):
    url = ("--url", f"file://{tmp_path}/jobs")
    bare("init", *url)

    assert "0 to f" in bare.refused("list", "--shard", "g", *url).err
    assert "0 to f" in bare.refused("worker", "--shards", "00", *url, *SHOP).err


def test_a_store_made_with_other_shards_is_refused(bare: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    url = ("--url", f"file://{tmp_path}/jobs")
    monkeypatch.setenv("MILLRACE_SHARD_DIGITS", "2")
    bare("init", *url)
    bare("submit", "pack", "--id", "x", *url)
    monkeypatch.delenv("MILLRACE_SHARD_DIGITS")

    ran = bare.refused("list", *url)

    assert ran.code == 3 and "MILLRACE_SHARD_DIGITS=2" in ran.err
    monkeypatch.setenv("MILLRACE_SHARD_DIGITS", "2")
    assert [row["id"] for row in bare("list", *url).rows] == ["x"]
