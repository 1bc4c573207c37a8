"""The object store behaves like the ledger on a directory and on a bucket too, step by step, as in tests/store.

The engine over memory goes through many examples there, with the same seeds. Here it is about what the drivers add:
files, listings, versions, and a store that is opened anew.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest

from millrace.store.clock import Clock
from millrace.store.object.store import ObjectStore
from millrace.store.protocol import Store
from proof.model.store_machine import COVERAGE, StoreMachine, rules_of, store_machine
from tests.object.conftest import Bucket
from tests.object.stores import Make, in_bucket, in_folder, quick_folder
from tests.store.test_model import NIGHTLY_SEEDS, SEEDS, run

EXAMPLES = {("directory", number): (10, 60) for number in SEEDS} | {("s3", SEEDS[0]): (4, 25)}  # (examples, steps)
AT_NIGHT = {"directory": 300, "s3": 40}

Places = dict[int, tuple[Make, Callable[[], None]]]  # of a store: how to open it anew, and how to throw it away


def machine(name: str, label: str, bucket: Callable[[], Bucket]) -> type[StoreMachine]:
    places: Places = {}

    def fresh(clock: Clock) -> Store:
        if name == "directory":
            folder = quick_folder()
            return opened(clock, in_folder(folder), lambda: shutil.rmtree(folder, ignore_errors=True))
        return opened(clock, in_bucket(bucket()), lambda: None)

    def opened(clock: Clock, make: Make, remove: Callable[[], None]) -> ObjectStore:
        store = make(clock)
        places[id(store)] = (make, remove)
        return store

    def reopened(store: Store, clock: Clock) -> Store:
        return opened(clock, *places.pop(id(store)))

    def discard(store: Store) -> None:
        places.pop(id(store))[1]()

    return store_machine(fresh, reopen=reopened, discard=discard, label=label)


@pytest.fixture
def subject(request: pytest.FixtureRequest) -> Callable[[str, str], type[StoreMachine]]:
    return lambda name, label: machine(name, label, lambda: request.getfixturevalue("bucket"))


@pytest.mark.parametrize(("name", "number"), EXAMPLES)
def test_the_object_store_behaves_like_the_ledger(subject, name, number):  # O-03, O-36
    examples, steps = EXAMPLES[name, number]

    run(subject(name, name), number, examples, steps, hurried=True)

    assert COVERAGE[name].counts["rule: work"]


@pytest.mark.nightly
@pytest.mark.timeout(14_400)
@pytest.mark.parametrize("number", NIGHTLY_SEEDS)
@pytest.mark.parametrize("name", AT_NIGHT)
def test_the_object_store_behaves_like_the_ledger_all_night(subject, name, number):
    run(subject(name, f"{name} at night"), number, AT_NIGHT[name], steps=100)


@pytest.mark.nightly
@pytest.mark.parametrize("name", AT_NIGHT)
def test_the_model_did_everything_there_is_to_do(subject, name):
    label = f"{name} at night"
    if label not in COVERAGE:
        pytest.skip("the model did not run in this process: it was deselected, or runs in another one")

    assert COVERAGE[label].missing(rules_of(subject(name, label))) == []
