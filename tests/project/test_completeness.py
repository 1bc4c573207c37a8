"""The tables of the documentation are complete: whatever the code has more of has to be written down."""

import ast
import inspect
import re
import tomllib
from pathlib import Path
from typing import get_args

import pytest

import millrace
import millrace.testing
from millrace import Cancelled, Context, QueueError, Spec, Worker
from millrace.app.local_events import KINDS
from millrace.app.options import JobKeywords, TaskKeywords, TaskOptions
from millrace.app.queue import QueueKeywords
from millrace.domain.job import ALIASES, OnDependency, OnHit, Scope
from millrace.domain.rules.dead import REASONS
from millrace.domain.settings import QueueSettings

ROOT = Path(__file__).resolve().parents[2]
TASK, JOB, QUEUE = (set(kind.__annotations__) for kind in (TaskKeywords, JobKeywords, QueueKeywords))
WORKER = set(inspect.signature(Worker).parameters) - {"app"}


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def section(name: str, title: str) -> str:
    found = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", page(name), re.DOTALL | re.MULTILINE)
    assert found, f"{name} has no section {title!r}"
    return found[1]


def in_code(text: str) -> set[str]:
    """The words in `code` marks."""
    return set(re.findall(r"\w+", " ".join(re.findall(r"`([^`\n]+)`", text))))


def first_column(text: str) -> set[str]:
    return in_code("\n".join(re.findall(r"^\| ([^|]*) \|", text, re.MULTILINE)))


def test_every_option_of_tasks_and_jobs_is_listed_where_it_may_be_used():
    rows = re.findall(
        r"^\| `(\w+)` \| .*? \|( ✓)? \|( ✓)? \|", section("options.md", "Task and job options"), re.MULTILINE
    )

    assert {name for name, task, _ in rows if task} == TASK | {"name"}
    assert {name for name, _, job in rows if job} == JOB


@pytest.mark.parametrize(
    ("title", "expected"), [("Queue settings", QUEUE), ("Worker options", WORKER)], ids=["queues", "workers"]
)
def test_every_setting_is_listed_and_no_other(title, expected):
    assert first_column(section("options.md", title)) == expected


def test_the_defaults_it_states_are_the_defaults():
    table = (
        section("options.md", "Task and job options")
        + section("options.md", "Queue settings")
        + section("options.md", "Worker options")
    )
    stated = dict(re.findall(r"^\| `(\w+)` \| (\d[\d,]*) \|", table, re.MULTILINE))
    worker = {name: parameter.default for name, parameter in inspect.signature(Worker).parameters.items()}
    actual = {
        "window": Spec("id", "task").window,
        **{name: getattr(QueueSettings(), name) for name in QueueSettings.__struct_fields__},
        **{name: worker[name] for name in WORKER},
        **{
            name: getattr(TaskOptions(), name) for name in TaskOptions.__struct_fields__ if name in TASK & stated.keys()
        },
    }

    assert len(stated) >= 10
    assert {name: float(value.replace(",", "")) for name, value in stated.items()} == {
        name: float(actual[name]) for name in stated
    }


def test_every_choice_is_explained():
    assert {*get_args(Scope), *get_args(OnHit)} <= in_code(page("howto/deduplication.md"))
    assert set(get_args(OnDependency)) <= in_code(page("howto/flows.md"))


def test_every_error_has_an_anchor_a_cause_and_a_fix():
    errors = {
        name
        for name in millrace.__all__
        if isinstance(found := getattr(millrace, name), type) and issubclass(found, QueueError)
    }

    sections = re.split(r"^### ", section("howto/errors.md", "All errors"), flags=re.MULTILINE)[1:]
    assert {text.partition("\n")[0] for text in sections} == errors - {"QueueError"}
    for text in sections:
        assert re.search(r"^\*\*Cause:\*\* \S", text, re.MULTILINE), text
        assert re.search(r"^\*\*Fix:\*\* \S", text, re.MULTILINE), text


# Raised inside of Millrace: callers get their base class, or a failed job.
INNER_ERRORS = {"AnswerMissing", "Crowded", "NoAnswer", "PayloadMismatch"}


def error_classes() -> dict[str, ast.ClassDef]:
    """The classes of all modules that derive from QueueError, also those that need an optional package."""
    files = (ROOT / "src" / "millrace").rglob("*.py")
    classes = [
        found for file in files for found in ast.walk(ast.parse(file.read_bytes())) if isinstance(found, ast.ClassDef)
    ]
    family: dict[str, ast.ClassDef] = {}
    while grown := {
        found.name: found
        for found in classes
        if found.name not in family
        and {base.id for base in found.bases if isinstance(base, ast.Name)} & {"QueueError", *family}
    }:
        family |= grown
    return family


def test_every_error_of_a_single_feature_has_a_docstring_an_anchor_a_cause_and_a_fix():
    public = {name for name in millrace.__all__ if isinstance(getattr(millrace, name), type)}
    errors = error_classes()
    raised = {"RemoteError", "ProcessDied"} | errors.keys() - public - INNER_ERRORS

    assert [name for name, found in errors.items() if not ast.get_docstring(found)] == []
    sections = re.split(r"^### ", section("howto/errors.md", "Errors of single features"), flags=re.MULTILINE)[1:]
    assert raised - {text.partition("\n")[0] for text in sections} == set()
    for text in sections:
        assert re.search(r"^\*\*Cause:\*\* \S", text, re.MULTILINE), text
        assert re.search(r"^\*\*Fix:\*\* \S", text, re.MULTILINE), text


def test_every_local_event_is_listed():
    assert first_column(section("howto/events.md", "In this process")) - {"kind"} == KINDS


def test_every_reason_to_die_is_listed():
    assert first_column(page("howto/dead-letters.md").partition("## Replay")[0]) == set(REASONS) - {"unknown"}


def test_every_answer_to_a_cancel_has_its_case():
    assert set(re.findall(r"case Cancelled\.(\w+):", page("howto/cancellation.md"))) == set(Cancelled.__members__)


def test_everything_a_context_offers_handlers_is_listed():
    inner = {"abort", "carry", "complete_sync", "generation", "job", "lane", "pool", "instance"}
    inner |= {"enqueued_at", "started_at"}
    offered = {name for name in vars(Context) if not name.startswith("_")} - inner

    assert offered <= in_code(section("howto/handlers.md", "The context"))


def test_every_alias_of_a_state_is_in_the_glossary():
    known = page("glossary.md").partition("## If you come from another queue")[2]

    assert [alias for alias in ALIASES if not re.search(rf"\b{alias}\b", known)] == []


def test_the_readme_does_not_boast():
    sentences = sum(
        len(re.findall(r"^async def test_", file.read_text(encoding="utf-8"), re.MULTILINE))
        for file in (ROOT / "src/millrace/testing/conformance").glob("*.py")
    )

    assert "The same 400+ tests" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert sentences > 400


SCHEMES = ("memory://", "sqlite://", "postgresql://", "redis://", "s3://", "file://")


def test_the_guarantees_say_of_each_store_what_an_acknowledgement_survives():
    table = page("guarantees.md").partition("## What an acknowledgement survives")[2].partition("\n## ")[0]

    assert [scheme for scheme in SCHEMES if f"| `{scheme}" not in table] == []


def test_the_pages_on_spark_name_every_store_that_a_cluster_can_use():
    for name in ("spark.md", "spark-cluster.md"):
        assert [scheme for scheme in ("postgresql://", "redis://", "s3://") if f"`{scheme}" not in page(name)] == []


def test_the_source_distribution_names_only_what_there_is():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    included = project["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]

    assert [path for path in included if not (ROOT / path.lstrip("/")).exists()] == []


R_34 = {
    "producer only": ("howto/workers.md", r"## A producer\n"),
    "consumer only, five at a time, with signals": ("howto/workers.md", r"slots=5[^`]*run\(\)  # until SIGTERM"),
    "request and response for an image, 60 s": ("howto/results.md", r"thumbnail\.options\(wait=60\)\.call\("),
    "custom serde": ("howto/serdes.md", r"class Compressed:[^`]*def decode"),
    "status, then the cached result": (
        "howto/results.md",
        r"app\.jobs\.handle\(\"cat\", thumbnail\)[^`]*job\.status\(\)[^`]*status\.result",
    ),
    "cancellation, every answer": ("howto/cancellation.md", r"match answer:"),
    "errors by class": ("howto/errors.md", r"except WaitTimeout[^`]*except JobFailed[^`]*except StoreError"),
    "listener that moves dead payloads": ("howto/dead-letters.md", r"@app\.on\(\"failed\"\)[^`]*job\.payload"),
    "shutdown with 10 s": ("howto/workers.md", r"shutdown_deadline=10"),
    "unit tests on memory": ("testing.md", r"on_memory"),
}


@pytest.mark.parametrize("example", R_34)
def test_r_34_every_example_of_job_queue_has_its_like(example):
    name, pattern = R_34[example]
    blocks = re.findall(r"^```python\n.*?^```$|^## .*\n", page(name), re.DOTALL | re.MULTILINE)

    assert any(re.search(pattern, block) for block in blocks)


def public_members(kind: type) -> list[tuple[str, object]]:
    """The methods and properties that a class of Millrace defines itself, or overrides."""
    if not kind.__module__.startswith("millrace"):
        return []
    members = [(name, value) for name, value in vars(kind).items() if not name.startswith("_")]
    return [
        (name, value)
        for name, value in members
        if isinstance(value, property | classmethod) or inspect.isfunction(value)
    ]


@pytest.mark.parametrize("module", [millrace, millrace.testing], ids=["millrace", "millrace.testing"])
def test_every_public_name_has_a_docstring(module):
    names = [name for name in module.__all__ if not name.startswith("__") and name != "CallNext"]  # a type alias
    bare = [name for name in names if not inspect.getdoc(getattr(module, name))]
    classes = [(name, getattr(module, name)) for name in names if inspect.isclass(getattr(module, name))]
    for name, kind in classes:
        if kind is not millrace.testing.FaultyStore:  # its methods are those of the protocol
            bare += [
                f"{name}.{member}" for member, _ in public_members(kind) if not inspect.getdoc(getattr(kind, member))
            ]

    assert bare == []


@pytest.mark.parametrize("module", [millrace, millrace.testing], ids=["millrace", "millrace.testing"])
def test_every_public_name_is_in_the_reference(module):
    pages = "\n".join(file.read_text(encoding="utf-8") for file in (ROOT / "docs" / "reference").glob("*.md"))
    listed = set(re.findall(rf"^::: {module.__name__}\.(\w+)$", pages, re.MULTILINE))

    assert {name for name in module.__all__ if not name.startswith("__")} - listed == set()
