"""The conformance suite itself: every topic is listed, taken over by the store tests, and no sentence hides another."""

from __future__ import annotations

import inspect
import pkgutil
from collections import Counter
from importlib import import_module
from pathlib import Path
from types import FunctionType

from millrace.testing import conformance

ROOT = Path(__file__).resolve().parents[2]


def sentences(topic: str) -> dict[str, FunctionType]:
    module = import_module(f"{conformance.__name__}.{topic}")
    return {
        name: function
        for name, function in vars(module).items()
        if name.startswith("test_") and inspect.isfunction(function)
    }


def test_every_topic_is_listed() -> None:
    modules = {module.name for module in pkgutil.iter_modules(conformance.__path__)}

    assert modules - {"scenes", "batch_scenes", "transfer_scenes"} == set(conformance.TOPICS)


def test_every_topic_is_taken_over_for_all_stores() -> None:
    """Those about callers' transactions for all that take part in such; see there."""
    files = ("test_conformance.py", "test_caller_transactions.py")
    text = "".join((ROOT / "tests/store" / name).read_text(encoding="utf-8") for name in files)

    assert [topic for topic in conformance.TOPICS if f"conformance.{topic} import *" not in text] == []


def test_no_sentence_hides_another() -> None:
    names = Counter(name for topic in conformance.TOPICS for name in sentences(topic))

    assert [name for name, times in names.items() if times > 1] == []
    assert names.total() >= 300


def test_every_sentence_is_about_a_store_and_a_clock() -> None:
    wrong = [
        name
        for topic in conformance.TOPICS
        for name, function in sentences(topic).items()
        if list(inspect.signature(function).parameters)[:2] != ["store", "clock"]
        or not inspect.iscoroutinefunction(function)
    ]

    assert wrong == []
