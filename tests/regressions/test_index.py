"""Every known mistake (part 4 of the specification) has a test that cites its number."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from pathlib import Path

import pytest

from tools.requirements import conformance, holders

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
POOLS = ROOT / "tests/app/pools/test_regressions.py"

COUNTS = {"BE": 17, "BL": 10, "BO": 23, "BR": 23, "X": 5}
OF_FILES = [f"BR-{number:02}" for number in (1, 2, 3, 4, 18, 20, 21, 22)]
OF_REDIS = [f"BR-{number:02}" for number in (5, 6, 7, 12, 15)]
NUMBERS = [
    f"{design}{number}" if design == "X" else f"{design}-{number:02}"
    for design, count in COUNTS.items()
    for number in range(1, count + 1)
]
POOL_NUMBERS = [f"BW-{number:02}" for number in range(1, 18)]

# What a number means for every store is proved here. This much more of it comes with a store that has such parts.
COMES_LATER = {
    "X3": "authentication, roles and origins: the web server",
    "X4": "the code version of a run whose worker has left: it is known while the worker is",
}


def prefix(number: str) -> str:
    return f"test_{number.lower().replace('-', '_')}_"


def found_in(path: Path) -> dict[str, Callable[..., object]]:
    module = importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
    return {name: found for name, found in vars(module).items() if name.startswith("test_") and callable(found)}


@pytest.fixture(scope="module")
def regressions() -> dict[str, Callable[..., object]]:
    found: dict[str, Callable[..., object]] = {}
    for path in sorted(HERE.glob("test_*.py")):
        if path.name != Path(__file__).name:
            ours = found_in(path)
            assert not ours.keys() & found.keys(), f"{path.name} hides tests of another file"
            found |= ours
    return found


def test_a_number_has_a_test_that_says_so():
    assert sorted(set(NUMBERS) - holders(gaps=True).keys()) == []


def test_a_test_here_is_named_after_a_number(regressions):
    known = tuple(map(prefix, NUMBERS))

    assert [name for name in regressions if not name.startswith(known)] == []


def test_no_test_runs_here_a_second_time(regressions):
    """A test of the conformance suite that proves a number is listed in tests/project/conformance.toml."""
    assert [name for name, function in regressions.items() if function.__name__ != name] == []


def test_every_store_is_held_to_most_of_them(regressions, stores_under_test):
    shared = [name for name, function in regressions.items() if "store" in inspect.signature(function).parameters]

    assert stores_under_test >= {"memory", "sqlite"}
    proved = {number for number in NUMBERS if any(name.startswith(prefix(number)) for name in shared)}
    proved |= {number for numbers in conformance().values() for number in numbers}  # which every store is held to
    others = {number for number in NUMBERS if not number.startswith("BO-")} - proved  # those are about objects
    assert sorted(others) == ["BE-15", "BE-17", "BR-22"]  # about a heap, a file and its sockets


@pytest.mark.parametrize("number", [number for number in NUMBERS if number.startswith("BO-")] + OF_FILES)
def test_what_is_about_objects_and_files_is_proved_on_them(number):
    ours = found_in(HERE / "test_object_store.py")

    assert [name for name in ours if name.startswith(prefix(number))], f"nothing proves {number} on the object store"


@pytest.mark.parametrize("number", OF_REDIS)
def test_what_is_about_lists_and_keys_is_proved_on_redis(number):
    ours = found_in(HERE / "test_redis_store.py")

    assert [name for name in ours if name.startswith(prefix(number))], f"nothing proves {number} on the Redis store"


def test_what_comes_later_is_about_numbers_that_exist():
    assert set(COMES_LATER) <= set(NUMBERS)


def test_the_pools_numbers_are_proved_where_pools_are_tested():
    found = [name.replace("_bw", "_bw_", 1) for name in found_in(POOLS)]

    missing = [number for number in POOL_NUMBERS if not any(name.startswith(prefix(number)) for name in found)]
    assert missing == []
