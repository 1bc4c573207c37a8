"""Acting on selected jobs: each once, whatever happens in the middle, and no faster than was asked for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from millrace.domain.change import Change
from millrace.domain.errors import InvalidInput
from millrace.domain.event import Kind
from millrace.domain.job import Job, Spec
from millrace.domain.outcome import Failure
from millrace.domain.request import Claim
from millrace.spark.bulk import act, action_named
from millrace.spark.bulk_manifest import Answered, BulkManifest, BulkRequest, Planned, opened_manifest
from millrace.spark.bulk_run import Pace, answers_to, carry_out, read_rate
from millrace.spark.open import OpenedStore
from millrace.views.bulk import BATCH
from tests.spark.conftest import STORES, Place

ROOT = Path(__file__).resolve().parents[2]
ERROR = Failure("ValueError", "no", "")


class Killed(BaseException):
    """Stands for kill -9: nothing after it is done."""


@pytest.fixture(params=[name for name in STORES if name != "s3"])  # the same engine as the directory
def found(request: pytest.FixtureRequest) -> Iterator[OpenedStore]:
    place: Place = request.getfixturevalue(request.param)
    with place.open() as opened:
        yield opened


def dead(found: OpenedStore, count: int) -> list[Job]:
    """So many dead jobs."""
    found.run(found.store.enqueue([Spec(f"job-{n}", "send", "mail", payload=b"{}") for n in range(count)]))
    die(found)
    return jobs(found, count)


def die(found: OpenedStore) -> None:
    """Whatever waits, dies."""
    while claimed := found.run(found.store.claim(Claim(("mail",), "w", limit=100))):
        found.run(found.store.settle([(job.lease, Change.bury(ERROR, "explicit_fail")) for job in claimed]))


def jobs(found: OpenedStore, count: int) -> list[Job]:
    return [job for job in found.run(found.store.get([f"job-{n}" for n in range(count)])) if job is not None]


def plan(jobs: Sequence[Job]) -> list[Planned]:
    return [
        Planned(job.id, job.seq, job.queue, job.task, job.state.value, None, job.finished_at, job.replays)
        for job in jobs
    ]


def select(manifest: BulkManifest, operation: str, jobs: Sequence[Job]) -> None:
    manifest.select(BulkRequest(operation, "there", "true", "now"), plan(jobs))


def kinds(found: OpenedStore, job: str, kind: Kind) -> int:
    return sum(event.kind is kind for event in found.run(found.store.history(job)))


class Small(Pace):
    def __init__(self, size: int) -> None:
        super().__init__(None)
        self.size = size


def go(found: OpenedStore, manifest: BulkManifest, operation: str = "replay", size: int = 2) -> bool:
    return carry_out(found, manifest, action_named(operation), Small(size), lambda _answered: None)


def killing(patch: pytest.MonkeyPatch, step: str, at: int) -> None:
    """Kill the run in its batch `at`: once the word is kept but nothing done, or all is done but no answer kept."""
    begin, answer = BulkManifest.begin, BulkManifest.answer
    batches = iter(range(1, 100))

    def begin_and_die(manifest: BulkManifest, jobs: int) -> None:
        begin(manifest, jobs)
        if next(batches) == at:
            raise Killed

    def die_or_answer(manifest: BulkManifest, lines: Sequence[Answered]) -> None:
        if next(batches) == at:
            raise Killed
        answer(manifest, lines)

    patch.setattr(BulkManifest, step, {"begin": begin_and_die, "answer": die_or_answer}[step])


@pytest.mark.parametrize(("at", "size"), [(1, 1), (2, 2), (3, 5)])  # it may go on in other batches
@pytest.mark.parametrize("step", ["begin", "answer"])
def test_a_run_killed_in_a_batch_acts_once_on_each_job_when_it_goes_on(
    found: OpenedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int, size: int, step: str
) -> None:
    path = tmp_path / "m.jsonl"
    selected = dead(found, 6)
    with monkeypatch.context() as patch, opened_manifest(path) as manifest:
        select(manifest, "replay", selected)
        killing(patch, step, at)
        with pytest.raises(Killed):
            go(found, manifest)
    die(found)  # what came back dies again: by its state alone nobody could tell

    with opened_manifest(path) as manifest:
        assert manifest.tally.answered == (at - 1) * 2
        assert go(found, manifest, size=size)
        assert manifest.tally.answers == {"replayed": 6} and manifest.tally.ended
    assert [kinds(found, job.id, Kind.REPLAYED) for job in selected] == [1] * 6


def test_cancel_and_archive_that_were_in_doubt_are_answered_as_done(found: OpenedStore) -> None:
    found.run(found.store.enqueue([Spec(f"job-{n}", "send", "mail", payload=b"{}") for n in range(3)]))
    waiting = jobs(found, 3)
    found.run(found.store.cancel(["job-0"]))

    cancelled = found.run(answers_to(found.store, action_named("cancel"), plan(waiting), doubtful=2))
    finished = jobs(found, 3)
    found.run(found.store.archive(["job-0"]))
    archived = found.run(answers_to(found.store, action_named("archive"), plan(finished), doubtful=3))

    assert cancelled == ["cancelled"] * 3 and archived == ["done"] * 3
    assert [kinds(found, f"job-{n}", Kind.CANCELLED) for n in range(3)] == [1, 1, 1]
    assert [kinds(found, f"job-{n}", Kind.ARCHIVED) for n in range(3)] == [1, 1, 1]


def test_jobs_that_lived_on_since_they_were_selected_are_left_alone(found: OpenedStore) -> None:
    selected = dead(found, 4)
    found.run(found.store.replay(["job-0", "job-3"]))  # an operator was faster
    die(found)
    gone = Planned("never-was", 99, "mail", "send", "dead", finished_ms=1)
    other = Planned("job-1", 10**9, "mail", "send", "dead", finished_ms=selected[1].finished_at)  # of a new enqueue

    answers = found.run(answers_to(found.store, action_named("replay"), [*plan(selected), gone, other], doubtful=0))

    assert answers == ["changed", "replayed", "replayed", "changed", "not_found", "changed"]
    assert [kinds(found, f"job-{n}", Kind.REPLAYED) for n in range(4)] == [1, 1, 1, 1]


def test_a_job_that_ran_meanwhile_is_still_cancelled_but_not_one_that_came_back(found: OpenedStore) -> None:
    found.run(found.store.enqueue([Spec(f"job-{n}", "send", "mail", payload=b"{}") for n in range(2)]))
    waiting = plan(jobs(found, 2))
    [first] = found.run(found.store.claim(Claim(("mail",), "w", limit=1)))
    found.run(found.store.settle([(first.lease, Change.retry(ERROR, delay=1_000_000))]))
    found.run(found.store.cancel(["job-1"]))
    found.run(found.store.replay(["job-1"]))

    answers = found.run(answers_to(found.store, action_named("cancel"), waiting, doubtful=0))

    assert (first.id, answers) == ("job-0", ["cancelled", "changed"])


def test_a_run_that_is_told_to_stop_does_so_between_batches_and_can_go_on(found: OpenedStore, tmp_path: Path) -> None:
    selected = dead(found, 5)
    stops = iter([False, False, True])
    pace = Pace(2.0, wait=lambda _seconds: next(stops))

    with opened_manifest(tmp_path / "m") as manifest:
        select(manifest, "archive", selected)
        assert not carry_out(found, manifest, action_named("archive"), pace, lambda _answered: None)
        assert (manifest.tally.answered, manifest.tally.left, manifest.tally.ended) == (4, 1, False)
        assert go(found, manifest, "archive")
        assert manifest.tally.answers == {"done": 5}


@pytest.mark.parametrize(("rate", "jobs"), [("10/s", 95), ("30/m", 20), (0.2, 4), ("100000/s", 250_000)])
def test_no_more_jobs_are_acted_on_than_the_rate_allows(rate: str | float, jobs: int) -> None:
    now = 0.0

    def wait(seconds: float) -> bool:
        nonlocal now
        now += seconds
        return False

    per_second = read_rate(rate) or 0.0
    pace = Pace(per_second, wait, lambda: now)
    done = 0
    while done < jobs:
        size = min(pace.size, jobs - done)
        assert pace.admit(size)
        done += size
        assert done <= per_second * now + pace.size + 1e-6

    assert pace.size <= max(1, min(BATCH, per_second))
    assert now == pytest.approx((jobs - size) / per_second)


def test_a_rate_that_was_not_used_is_not_made_up_for() -> None:
    now = 0.0
    waited: list[float] = []

    def wait(seconds: float) -> bool:
        waited.append(seconds)
        return False

    pace = Pace(10.0, wait, lambda: now)
    pace.admit(10)
    now = 60.0  # the store was slow
    pace.admit(10)
    pace.admit(10)

    assert waited == [0.0, 0.0, 1.0]


@pytest.mark.parametrize("rate", ["", "0", "-3/s", "fast", "3/d", "1e3", "nan", "3 jobs"])
def test_a_rate_that_is_none_is_refused(rate: str) -> None:
    with pytest.raises(InvalidInput, match="such as 100/s, 30/m or 500/h") as refused:
        read_rate(rate)
    assert repr(rate) in str(refused.value)


PROGRAM = """
import sys
from pathlib import Path
from millrace.spark.bulk import act
from millrace.spark.bulk import action_named
from millrace.spark.bulk_manifest import opened_manifest
from millrace.spark.bulk_run import Pace

with opened_manifest(Path(sys.argv[2])) as manifest:
    act(manifest, action_named("replay"), sys.argv[1], Pace(200.0), lambda done: print(done, flush=True))
"""


def test_a_process_killed_with_9_has_acted_on_no_job_that_is_acted_on_again(sqlite: Place, tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    with sqlite.open() as found:
        selected = dead(found, 500)
    with opened_manifest(path) as manifest:
        select(manifest, "replay", selected)

    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", PROGRAM, sqlite.url, str(path)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None and run.stdout.readline().strip() == "200"
        time.sleep(0.05)
        run.send_signal(signal.SIGKILL)
    with sqlite.open() as found:
        die(found)
    with opened_manifest(path) as manifest:
        assert 200 <= manifest.tally.answered < 500
        act(manifest, action_named("replay"), sqlite.url, Pace(None))
        assert manifest.tally.answers == {"replayed": 500}
    with sqlite.open() as found:
        assert {job.replays for job in jobs(found, 500)} == {1}
