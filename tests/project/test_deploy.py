"""The files in deploy/ fit the program: the flags and settings that they use exist, and times and names agree."""

from __future__ import annotations

import configparser
import contextlib
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from millrace import App, JobFailed
from millrace.app.settings import SETTINGS
from millrace.cli.root import PLACES, command
from millrace.domain.event import Kind
from millrace.web.exporter import STATES, Exporter
from tests.project.containerfile import FILE, stages

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
STOPPING = SETTINGS["shutdown_deadline"].default + SETTINGS["grace"].default  # seconds that a worker may take
VARIABLES = {setting.env for setting in SETTINGS.values()}
METRIC = re.compile(r"\bmillrace_[a-z_]+")


def is_command(words: list[str]) -> bool:
    """Whether `millrace` accepts these words: the command exists, and so do its flags."""
    name, *flags = words
    known = {flag for parameter in command(name).params for flag in parameter.opts} if name in PLACES else set()
    return name in PLACES and {flag.partition("=")[0] for flag in flags if flag.startswith("--")} <= known


# ── systemd ───────────────────────────────────────────────────────────────────────────────────


def unit(name: str) -> configparser.RawConfigParser:
    read = configparser.RawConfigParser(strict=False, interpolation=None)
    read.optionxform = str  # type: ignore[assignment,method-assign]  # names keep their case
    read.read_string((DEPLOY / "systemd" / name).read_text("utf-8"))
    return read


@pytest.mark.parametrize("name", ["millrace-worker@.service", "millrace-serve.service"])
def test_a_unit_runs_a_command_that_exists_without_rights_that_it_does_not_need(name: str):
    service = unit(name)["Service"]
    program, *words = shlex.split(service["ExecStart"])

    assert program.endswith("/bin/millrace") and is_command(words)
    assert service["User"] == "millrace" and service["Restart"] == "always"
    assert service["NoNewPrivileges"] == "yes" and service["ProtectSystem"] == "strict"
    assert service["CapabilityBoundingSet"] == ""


def test_systemd_waits_for_a_worker_to_finish_its_jobs_and_asks_whether_its_loop_runs():
    service = unit("millrace-worker@.service")["Service"]

    assert float(service["TimeoutStopSec"]) > STOPPING
    assert service["KillMode"] == "mixed"  # a handler's child process is not interrupted before its worker
    assert service["Type"] == "notify" and float(service["WatchdogSec"]) >= 20


def test_the_example_of_an_environment_file_has_settings_that_exist():
    text = (DEPLOY / "systemd" / "millrace.env").read_text("utf-8")
    names = re.findall(r"^(\w+)=", text, re.MULTILINE)

    assert {"MILLRACE_URL", "MILLRACE_APP"} <= {*names} <= VARIABLES


# ── container ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("target", ["worker", "server"])
def test_an_image_runs_as_a_numbered_user_and_gets_signals_itself(target: str):
    stage = stages()[target]

    assert re.fullmatch(r"[1-9]\d+:[1-9]\d+", stage["USER"])  # Kubernetes refuses names with runAsNonRoot
    assert json.loads(stage["ENTRYPOINT"]) == ["millrace"]  # no shell, which would not pass the signal on
    assert is_command(json.loads(stage["CMD"]))
    assert stage["STOPSIGNAL"] == "SIGTERM" and " CMD " in stage["HEALTHCHECK"]
    variables = {name for name in re.findall(r"(\w+)=", stage["ENV"]) if name.startswith("MILLRACE")}
    assert variables and variables <= VARIABLES


def test_images_are_of_a_version_and_take_what_the_package_needs():
    build = stages()["build"]
    text = FILE.read_text("utf-8")

    assert build["FROM"].endswith("-slim") and ":latest" not in text
    copied = {name for line in re.findall(r"^COPY (?!--)(.*) \S+$", text, re.MULTILINE) for name in line.split()}
    assert copied == {"pyproject.toml", "README.md", "LICENSE", "src"}
    assert [name for name in copied if not (ROOT / name).exists()] == []


# ── Kubernetes ────────────────────────────────────────────────────────────────────────────────


def manifests() -> dict[tuple[str, str], dict[str, Any]]:
    return {
        (one["kind"], one["metadata"]["name"]): one
        for file in sorted((DEPLOY / "kubernetes").glob("*.yaml"))
        if file.name != "kustomization.yaml"
        for one in yaml.safe_load_all(file.read_text("utf-8"))
    }


def pod_of(name: str) -> dict[str, Any]:
    spec: dict[str, Any] = manifests()["Deployment", name]["spec"]["template"]["spec"]
    return spec


@pytest.mark.parametrize("name", ["millrace-worker", "millrace-server"])
def test_a_deployment_runs_a_command_that_exists_without_rights(name: str):
    pod = pod_of(name)
    [container] = pod["containers"]

    assert is_command(container["args"])
    assert (
        pod["securityContext"]["runAsNonRoot"] and str(pod["securityContext"]["runAsUser"]) in stages()["base"]["USER"]
    )
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert container["resources"]["limits"]["memory"] and container["livenessProbe"]


def test_workers_get_time_to_finish_and_are_probed_by_the_file_that_they_touch():
    pod = pod_of("millrace-worker")
    [container] = pod["containers"]
    file = container["args"][container["args"].index("--alive-file") + 1]

    assert pod["terminationGracePeriodSeconds"] > STOPPING
    for probe in ("startupProbe", "livenessProbe"):
        assert file in container[probe]["exec"]["command"][-1]
    assert any(file.startswith(mount["mountPath"] + "/") for mount in container["volumeMounts"])


def test_the_servers_probes_service_and_flags_agree_on_the_port():
    [container] = pod_of("millrace-server")["containers"]
    [port] = container["ports"]
    [served] = manifests()["Service", "millrace-server"]["spec"]["ports"]

    assert f"--port={port['containerPort']}" in container["args"]
    assert container["readinessProbe"]["httpGet"] == {"path": "/health", "port": port["name"]}
    assert container["livenessProbe"] == {**container["livenessProbe"], "tcpSocket": {"port": port["name"]}}
    assert served["targetPort"] == port["name"]


def test_selectors_budgets_and_references_name_what_there_is():
    found = manifests()
    labels = {
        name: found["Deployment", name]["spec"]["template"]["metadata"]["labels"]
        for kind, name in found
        if kind == "Deployment"
    }

    for name, its_labels in labels.items():
        assert found["Deployment", name]["spec"]["selector"]["matchLabels"] == its_labels
        for source in pod_of(name)["containers"][0]["envFrom"]:
            [(kind, reference)] = source.items()
            assert ({"configMapRef": "ConfigMap", "secretRef": "Secret"}[kind], reference["name"]) in found
    budget = found["PodDisruptionBudget", "millrace-worker"]["spec"]
    assert budget["selector"]["matchLabels"] == labels["millrace-worker"]
    assert found["Service", "millrace-server"]["spec"]["selector"] == labels["millrace-server"]
    scaled = found["ScaledObject", "millrace-worker"]["spec"]
    assert scaled["scaleTargetRef"]["name"] in labels and scaled["minReplicaCount"] >= 1  # schedules need a worker
    for kind, name in found:
        if kind in ("ConfigMap", "Secret"):
            assert (found[kind, name].get("data") or found[kind, name]["stringData"]).keys() <= VARIABLES


def test_the_kustomization_lists_the_files_and_replaces_the_images():
    kustomization = yaml.safe_load((DEPLOY / "kubernetes" / "kustomization.yaml").read_text("utf-8"))
    images = {
        container["image"]
        for name in ("millrace-worker", "millrace-server")
        for container in pod_of(name)["containers"]
    }

    assert [file for file in kustomization["resources"] if not (DEPLOY / "kubernetes" / file).exists()] == []
    assert {image["name"] for image in kustomization["images"]} == images
    hosts = {
        word.partition("=")[2] for word in pod_of("millrace-server")["containers"][0]["args"] if "allow-host" in word
    }
    assert f"millrace-server.{kustomization['namespace']}" in hosts  # by which KEDA asks


# ── metrics ───────────────────────────────────────────────────────────────────────────────────


async def exported() -> dict[str, set[str]]:
    """The labels of every metric that /metrics has, with the metric types spelled out, as Prometheus stores them."""
    app = App("memory://")

    @app.task(max_attempts=1)
    async def work(fail: bool) -> None:
        if fail:
            raise ValueError("on purpose")

    exporter = Exporter(app)
    async with app:
        await exporter.text()  # from here on events count
        async with app.worker():
            for fail in (False, True):
                with contextlib.suppress(JobFailed):
                    await (await work.enqueue(fail)).result(wait="60s")
        text = (await exporter.text()).decode()
    found: dict[str, set[str]] = {}
    for name, labels in re.findall(r"^(\w+)(?:\{(.*)\})? ", text, re.MULTILINE):
        found.setdefault(name, set()).update(re.findall(r"(\w+)=\"", labels))
    return found


def expressions() -> Iterator[tuple[str, str]]:
    """Every expression for Prometheus in deploy/, and where it is."""
    rules = yaml.safe_load((DEPLOY / "prometheus" / "millrace-rules.yml").read_text("utf-8"))
    for rule in rules["groups"][0]["rules"]:
        yield rule["alert"], rule["expr"]
    board = json.loads((DEPLOY / "grafana" / "millrace.json").read_text("utf-8"))
    for panel in board["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["name"], variable["query"]["query"]
    for trigger in manifests()["ScaledObject", "millrace-worker"]["spec"]["triggers"]:
        yield "KEDA", trigger["metadata"]["query"]


async def test_every_metric_in_alerts_dashboard_and_autoscaling_is_exported_with_these_labels():
    known = await exported()
    allowed = {"kind": {kind.value for kind in Kind}, "state": {*STATES, "alive", "stale"}}
    found = list(expressions())

    assert len(found) > 25
    for place, text in found:
        names = METRIC.findall(text)
        assert names or "up{" in text, place
        assert [name for name in names if name not in known] == [], place
        for name, matchers in re.findall(r"(millrace_\w+)\{([^}]*)\}", text):
            for label, _, value in re.findall(r"(\w+)(=~|!~|!=|=)\"([^\"]*)\"", matchers):
                assert label in known[name], place
                if label in allowed:
                    assert {*value.split("|")} <= allowed[label], place


async def test_the_page_on_monitoring_lists_every_metric_and_every_alert():
    page = (ROOT / "docs" / "monitoring.md").read_text("utf-8")
    names = {re.sub(r"_(bucket|count|sum)$", "", name) for name in await exported() if not name.endswith("_created")}
    rules = yaml.safe_load((DEPLOY / "prometheus" / "millrace-rules.yml").read_text("utf-8"))["groups"][0]["rules"]

    assert {*re.findall(r"^\| `(millrace_\w+)", page, re.MULTILINE)} == names
    assert re.findall(r"^\| `(Millrace\w+)` \|", page, re.MULTILINE) == [rule["alert"] for rule in rules]


def test_every_alert_says_what_happened_and_what_to_do():
    rules = yaml.safe_load((DEPLOY / "prometheus" / "millrace-rules.yml").read_text("utf-8"))["groups"][0]["rules"]

    for rule in rules:
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert rule["annotations"]["summary"] and rule["annotations"]["description"].endswith(".")


def test_panels_of_the_dashboard_do_not_overlap():
    board = json.loads((DEPLOY / "grafana" / "millrace.json").read_text("utf-8"))
    taken: set[tuple[int, int]] = set()

    for panel in board["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken and max(x for x, _ in cells) < 24, panel["title"]
        taken |= cells
