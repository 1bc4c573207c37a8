"""Every store behaves like the ledger, step by step, whatever is asked of it and in whatever order.

The seeds are fixed, so all stores go through the same examples and a failure comes back. Each failure also prints
a `@reproduce_failure` line, which may be put on `machine` below.
"""

from __future__ import annotations

import asyncio
import math
import os
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from millrace.store.clock import Clock
from millrace.store.protocol import Store
from millrace.testing.clock import VirtualClock
from proof.model.coverage import Coverage
from proof.model.store_machine import COVERAGE, StoreMachine, by_mood, rules_of, store_machine
from tests.servers import postgres
from tests.store.conftest import STORES
from tests.store.postgres import stores as postgres_stores

SEEDS = (1, 2, 3)
NIGHTLY_SEEDS = (11, 12, 13, 14, 15)
IN_MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None  # behaviour is compared here, not durability
PERSISTENT = frozenset(STORES) - {"memory"}
HURRIED = "MILLRACE_MODEL_EXAMPLES" in os.environ  # set by tools/mutate.py, which only asks whether, not how
EXAMPLES = int(os.environ.get("MILLRACE_MODEL_EXAMPLES", "100"))
folders: dict[int, Path] = {}


def make(name: str, clock: Clock, folder: Path) -> Store:
    assert isinstance(clock, VirtualClock)
    store = STORES[name](clock, folder)
    folders[id(store)] = folder
    return store


def discard(store: Store) -> None:
    folder = folders.pop(id(store))
    shutil.rmtree(folder, ignore_errors=True)
    if isinstance(store, postgres_stores.PostgresForTests):
        postgres.release(folder)


def loop_for(name: str) -> AbstractContextManager[asyncio.Runner | None]:
    """One for all examples, where connections are worth keeping."""
    return postgres_stores.kept_open() if name == "postgres" else nullcontext()


def machine(name: str, label: str, runner: asyncio.Runner | None = None) -> type[StoreMachine]:
    return store_machine(
        lambda clock: make(name, clock, Path(tempfile.mkdtemp(prefix="millrace-model-", dir=IN_MEMORY))),
        reopen=(lambda store, clock: make(name, clock, folders.pop(id(store)))) if name in PERSISTENT else None,
        discard=discard,
        label=label,
        runner=runner,
    )


def run(subject: type[StoreMachine], number: int, examples: int, steps: int, *, hurried: bool = HURRIED) -> None:
    """Each mood gets its share of the examples. In a hurry, a failing example is shown as it was found."""
    machines = by_mood(subject)
    for one in machines:
        run_state_machine_as_test(
            seed(number)(one),
            settings=settings(
                max_examples=math.ceil(examples / len(machines)),
                stateful_step_count=steps,
                deadline=None,
                database=None,
                print_blob=True,
                phases=[Phase.generate] if hurried else list(Phase),
                suppress_health_check=list(HealthCheck),
            ),
        )


@pytest.fixture
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all processes of this test run see."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


def check_coverage(name: str, number: int, seeds: Sequence[int], shared: Path, least: int) -> None:
    """Seeds run in any order, in several processes: the last one to end sees what all of them together have done."""
    done = {one: shared / f"model-{name}-{one}.json" for one in seeds}
    draft = done[number].with_suffix(".draft")
    draft.write_bytes(msgspec.json.encode(COVERAGE[label(name, number)].counts))
    draft.rename(done[number])
    if all(file.exists() for file in done.values()):
        together = Coverage()
        for file in done.values():
            together.counts.update(msgspec.json.decode(file.read_bytes(), type=dict[str, int]))
        assert together.missing(rules_of(machine(name, name)), least) == [], "the model did not do all there is to do"


def label(name: str, number: int) -> str:
    return f"{name} {number}"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("number", SEEDS)
@pytest.mark.parametrize("name", sorted(STORES))
def test_a_store_behaves_like_the_ledger(name, number, shared):  # E-04
    with loop_for(name) as runner:
        run(machine(name, label(name, number), runner), number, examples=EXAMPLES, steps=60)

    check_coverage(name, number, SEEDS, shared, least=0 if HURRIED else 1)


@pytest.mark.nightly
@pytest.mark.timeout(14_400)
@pytest.mark.parametrize("number", NIGHTLY_SEEDS)
@pytest.mark.parametrize("name", sorted(STORES))
def test_a_store_behaves_like_the_ledger_all_night(name, number, shared):
    with loop_for(name) as runner:
        run(machine(name, label(name, number), runner), number, examples=1_000, steps=100)

    check_coverage(name, number, NIGHTLY_SEEDS, shared, least=1_000)
