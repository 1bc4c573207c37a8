"""The examples that are one program each: run as their first lines say, and what they print."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.examples.program import EXAMPLES, Example
from tests.servers.ministack import running_ministack


def test_script(tmp_path: Path) -> None:
    example = Example("script.py", tmp_path)
    for name in ("one", "two"):
        (example.folder / f"{name}.txt").write_text(name)

    first = example.run("script.py", ".").splitlines()
    (example.folder / "three.txt").write_text("three")
    second = example.run("script.py", ".").splitlines()

    assert first == ["2 files, 0 known", "one.txt 3 7692c3ad3540", "two.txt 3 3fc4ccfe7458"]
    assert second[0] == "3 files, 2 known"
    assert set(first[1:]) < set(second[1:])


def test_outbox(tmp_path: Path) -> None:
    assert Example("outbox.py", tmp_path).run("outbox.py").splitlines() == [
        "unicorn: out of stock; neither the order nor its job exists",
        "tea 1",
        "coffee 1",
        "jobs: 2",
    ]


def test_webhooks(tmp_path: Path) -> None:
    printed = Example("webhooks.py", tmp_path).run("webhooks.py").splitlines()

    assert printed == [f"{customer} 0 1 2 3 4" for customer in ("ada", "bob", "eve")]


def test_tenants(tmp_path: Path) -> None:
    assert Example("tenants.py", tmp_path).run("tenants.py").splitlines() == [
        "240 exports",
        "small tenants done before the big one: True",
        "the paying tenant too: True",
    ]


def test_s3_queue(tmp_path: Path) -> None:
    with running_ministack(tmp_path) as server:
        example = Example("s3_queue.py", tmp_path)
        example.environ |= {
            "AWS_ACCESS_KEY_ID": server.access_key,
            "AWS_SECRET_ACCESS_KEY": server.secret_key,
            "S3_ENDPOINT": server.endpoint,
            "MILLRACE_URL": "s3://jobs/example",
        }
        example.run("-m", "millrace", "init")
        assert example.run("s3_queue.py", "cat.jpg", "dog.jpg").splitlines() == [
            "thumbnail cat.jpg ready",
            "thumbnail dog.jpg ready",
        ]
        example.run("-m", "millrace", "worker", "--app", "s3_queue:app", "--burst")
        assert example.run("s3_queue.py", "cat.jpg").splitlines() == ["thumbnail cat.jpg cat.jpg: 200 pixels wide"]


@pytest.mark.slow
def test_spark_etl(tmp_path: Path) -> None:
    assert Example("spark_etl.py", tmp_path).run("spark_etl.py").splitlines() == ["DE 25.0", "FR 30.0"]


def test_journal_store(tmp_path: Path) -> None:
    example = Example("journal_store.py", tmp_path)

    assert example.run("journal_store.py").splitlines() == ["hello ada", "hello bob"]
    assert (example.folder / "jobs.journal").exists()


def test_every_example_says_how_to_run_it_and_is_on_the_page_of_examples() -> None:
    page = (EXAMPLES.parent / "docs/examples.md").read_text("utf-8")
    for file in sorted(EXAMPLES.iterdir()):
        if file.suffix == ".py":
            text = file.read_text("utf-8")
            assert "Run it" in text or "millrace init" in text, file
        if not file.name.startswith((".", "__")):
            assert f"../examples/{file.name}" in page, file
