"""Which Spark a command runs on: what its user says, then what the cluster's configuration says, then this machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from millrace.cli.pipeline.drain import _default_master as default_master
from millrace.cli.pipeline.options import SECRET_URL, SparkOptions
from millrace.domain.errors import InvalidInput
from millrace.spark import session as sessions
from millrace.spark.configured import configured, master_of
from millrace.spark.lake import Lake, LakePlace


class Builder:
    """Takes down what a session is asked for."""

    def __init__(self) -> None:
        self.place: tuple[str, str] | None = None
        self.settings: dict[str, str] = {}

    def appName(self, name: str) -> Builder:
        return self

    def master(self, master: str) -> Builder:
        self.place = ("master", master)
        return self

    def remote(self, url: str) -> Builder:
        self.place = ("remote", url)
        return self

    def config(self, key: str, value: str) -> Builder:
        self.settings[key] = value
        return self

    def getOrCreate(self) -> Any:
        return self


@pytest.fixture
def builder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Builder:
    """Nothing is started; Spark's configuration lies in a folder of the test."""
    from pyspark.sql import SparkSession

    made = Builder()
    monkeypatch.setattr(SparkSession, "builder", made)
    monkeypatch.setattr(sessions, "use_java", lambda: None)
    monkeypatch.setattr(sessions, "register", lambda _session: None)
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    for name in ("SPARK_REMOTE", "MASTER", "PYSPARK_SUBMIT_ARGS", "PYSPARK_GATEWAY_PORT", "SPARK_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    return made


def written(folder: Path, text: str) -> None:
    (folder / "spark-defaults.conf").write_text(text)


def test_without_any_word_it_is_this_machine(builder: Builder):
    sessions.session()
    assert builder.place == ("master", "local[*]")
    assert builder.settings["spark.driver.host"] == "127.0.0.1"


def test_the_clusters_own_master_wins_unless_the_user_says_otherwise(
    builder: Builder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    written(tmp_path, "# ours\nspark.master            spark://cluster:7077\nspark.driver.memory=3g\n")
    sessions.session()
    assert builder.place == ("master", "spark://cluster:7077")
    assert "spark.driver.host" not in builder.settings  # executors elsewhere must reach the driver
    assert "spark.driver.memory" not in builder.settings

    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--conf spark.master=k8s://https://k pyspark-shell")
    sessions.session()
    assert builder.place == ("master", "k8s://https://k")

    monkeypatch.setenv("MASTER", "local[3]")
    sessions.session()
    assert builder.place == ("master", "local[3]")

    sessions.session(master="yarn", memory="5g")
    assert builder.place == ("master", "yarn")
    assert builder.settings["spark.driver.memory"] == "5g"


def test_executors_run_the_python_that_the_environment_or_the_configuration_names(
    builder: Builder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    written(tmp_path, "spark.pyspark.python /opt/python\n")
    for before, expected in ((None, "/opt/python"), ("python3", "python3")):
        environment = {**os.environ, **({} if before is None else {"PYSPARK_PYTHON": before})}
        monkeypatch.setattr(os, "environ", environment)
        sessions.session(master="spark://head:7077")
        assert environment["PYSPARK_PYTHON"] == expected


def test_a_connect_server_of_the_configuration_is_used(builder: Builder, tmp_path: Path):
    written(tmp_path, "spark.remote sc://cluster:15002\n")
    sessions.session()
    assert builder.place == ("remote", "sc://cluster:15002")


def test_java_options_of_the_configuration_are_kept(builder: Builder, tmp_path: Path):
    written(tmp_path, "spark.driver.extraJavaOptions -Dtheirs=1\nspark.sql.session.timeZone Europe/Zurich\n")
    sessions.session()
    assert builder.settings["spark.driver.extraJavaOptions"].startswith("-Dtheirs=1 -Dlog4j")
    assert builder.settings["spark.sql.session.timeZone"] == "UTC"  # tables mean UTC


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("--master yarn pyspark-shell", {"spark.master": "yarn"}),
        ("--master=yarn --driver-memory 2g x.py", {"spark.master": "yarn", "spark.driver.memory": "2g"}),
        ("--conf 'spark.app.name=a b' -c spark.x=1", {"spark.app.name": "a b", "spark.x": "1"}),
        ("--remote sc://h", {"spark.remote": "sc://h"}),
        ("--name x pyspark-shell", {}),
        ("--master", {"spark.master": ""}),
    ],
)
def test_arguments_of_spark_submit_are_read(arguments: str, expected: dict[str, str], tmp_path: Path):
    environment = {"PYSPARK_SUBMIT_ARGS": arguments, "SPARK_CONF_DIR": str(tmp_path)}
    assert configured(environment) == expected


def test_files_of_properties_are_read(tmp_path: Path):
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text(
        "# spark.master no\n\n spark.master = yarn \nspark.a:1\nspark.b  two words\nother x\nspark.empty\n"
    )
    (tmp_path / "mine.conf").write_text("spark.master local[7]\n")
    home = {"SPARK_HOME": str(tmp_path)}

    assert configured(home) == {"spark.master": "yarn", "spark.a": "1", "spark.b": "two words"}
    named = {**home, "PYSPARK_SUBMIT_ARGS": f"--properties-file {tmp_path}/mine.conf pyspark-shell"}
    assert master_of(configured(named), named) == "local[7]"
    assert master_of(configured({"SPARK_CONF_DIR": str(tmp_path / "nowhere")}), {}) is None


@pytest.mark.parametrize("kind", [str, Path])
def test_lakes_and_manifests_are_not_made_in_a_folder_that_is_named_like_a_scheme(
    kind: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    for make in (lambda: LakePlace(kind("gs://b/lake")), lambda: Lake(kind("s3a://b/lake"), None)):  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match="is not supported here"):
            make()
    assert LakePlace("file:///var/lake").location.root == "/var/lake"
    assert LakePlace(kind("s3://b/a/lake")).location.root == "b/a/lake"
    assert list(tmp_path.iterdir()) == []


# ── settings of the command ───────────────────────────────────────────────────────────────────────


def test_settings_of_the_command_win_over_the_cluster_and_the_cluster_over_millrace(builder: Builder, tmp_path: Path):
    written(tmp_path, "spark.master yarn\nspark.executor.memory 4g\nspark.ui.enabled true\nspark.driver.memory 3g\n")
    options = SparkOptions(
        conf=["spark.executor.memory=9g", "spark.driver.extraJavaOptions=-Dmine=1 -Dx=y"],
        packages="io.delta:delta-spark_2.13:4.0.0",
    )

    sessions.session(settings=options.settings())

    assert builder.place == ("master", "yarn")
    assert builder.settings["spark.executor.memory"] == "9g"
    assert builder.settings["spark.jars.packages"] == "io.delta:delta-spark_2.13:4.0.0"
    assert builder.settings["spark.driver.extraJavaOptions"].startswith("-Dmine=1 -Dx=y -Dlog4j")
    assert not {"spark.ui.enabled", "spark.driver.memory"} & builder.settings.keys()  # Spark reads its own file


def test_the_master_can_be_a_setting_of_the_command(builder: Builder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    written(tmp_path, "spark.master yarn\n")
    monkeypatch.setenv("MASTER", "local[3]")

    sessions.session(settings=SparkOptions(conf=["spark.master=spark://head:7077"]).settings())
    assert builder.place == ("master", "spark://head:7077")

    sessions.session(master="local[5]", settings=SparkOptions(conf=["spark.master=yarn"]).settings())
    assert builder.place == ("master", "local[5]")


def test_settings_that_cannot_work_are_refused(builder: Builder):
    for text in ("spark.x", "x=y", "=y"):
        with pytest.raises(InvalidInput, match=r"Write it as --conf spark\.key=value"):
            SparkOptions(conf=[text]).settings()
    with pytest.raises(InvalidInput, match=r"spark\.sql\.session\.timeZone must be UTC, not Europe/Zurich"):
        sessions.session(settings={"spark.sql.session.timeZone": "Europe/Zurich"})
    with pytest.raises(InvalidInput, match="Start the server with --packages"):
        sessions.session(master="sc://head", settings=SparkOptions(packages="a:b:1").settings())


def test_a_drain_on_this_machine_retries_tasks_unless_a_master_is_set(builder: Builder, tmp_path: Path):
    assert default_master({}) == "local[*,4]"
    assert default_master({"spark.master": "yarn"}) is None
    written(tmp_path, "spark.master yarn\n")
    assert default_master({}) is None


def test_executors_get_a_secret_in_their_environment_unless_the_cluster_sets_it(
    builder: Builder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    started: list[dict[str, str]] = []
    monkeypatch.setattr(sessions, "_start_jvm", lambda _master, settings: started.append({**settings}))
    secrets = {SECRET_URL: "redis://:hidden@db"}

    sessions.session(master="spark://head:7077", secrets=secrets)
    assert builder.settings[f"spark.executorEnv.{SECRET_URL}"] == "redis://:hidden@db"
    assert "hidden" not in str(started)  # the command line of the JVM
    builder.settings.clear()

    sessions.session(master="local[2]", secrets=secrets)  # its Python processes inherit the environment
    written(tmp_path, f"spark.kubernetes.executor.secretKeyRef.{SECRET_URL} jobs:url\n")
    sessions.session(master="k8s://https://head", secrets=secrets)
    assert "hidden" not in str(builder.settings)
