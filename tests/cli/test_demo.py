"""The demo keeps what it says: it runs, its audit holds and could fail, and it leaves nothing behind but its store."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from rich.cells import cell_len
from rich.console import Console

from millrace.cli import exits
from millrace.cli.demo.screen import Screen, _selected_notes
from millrace.cli.demo.summary import _Page
from millrace.demo import victim
from millrace.demo.audit import TICK, audit
from millrace.demo.board import Board, Note
from millrace.demo.figures import percentiles
from millrace.demo.run import SMS_BURST, Demo, DemoSettings, Strike
from millrace.demo.workload import QUEUES, draw
from millrace.domain.audit import Evidence
from millrace.domain.event import Event, Kind
from millrace.domain.job import Job, State
from millrace.domain.request import Enqueued
from millrace.domain.settings import QueueSettings
from millrace.store.connect import connect
from millrace.testing.invariants import assert_holds, gather
from tests.cli.process import Shell, alive
from tests.cli.stage import Stage

Change = Callable[[Evidence], Evidence]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The summary of a demo of three seconds."""
    folder = tmp_path_factory.mktemp("demo")
    ran = Shell(folder).run("demo", "--seconds", "3", "--json", "--dir", "shop", "--seed", "5")
    assert (ran.returncode, ran.stderr) == (exits.OK, ""), ran
    assert "\x1b" not in ran.stdout
    summary: dict[str, Any] = json.loads(ran.stdout)
    return summary


@pytest.fixture
async def evidence(finished: dict[str, Any]) -> Evidence:
    store = connect(finished["url"])
    await store.connect()
    try:
        found = await gather(store)
    finally:
        await store.close()
    return Evidence(
        found.jobs,
        found.events,
        settings={"sms": QueueSettings(rate=1_000.0, burst=SMS_BURST)},
        fixed_limits=True,
        answers=[("", Enqueued("queued", job.id, job.seq, job.generation, job.state)) for job in found.jobs],
        lost_workers=(victim.NAME,),
        ticks={TICK: 1_000},
    )


# ── a whole run ───────────────────────────────────────────────────────────────────────────────


def test_it_shows_what_a_queue_is_for_and_its_audit_holds(finished: dict[str, Any]):
    assert finished["ok"] and finished["audit"]["ok"] and not finished["interrupted"]
    assert all(check["ok"] for check in finished["audit"]["checks"])
    assert finished["accepted"] == sum(finished[word] for word in ("completed", "dead", "cancelled", "live"))
    assert finished["completed"] > 50 and finished["live"] == 0 and finished["cancelled"] >= 1
    assert finished["retries"] >= 5 and finished["duplicates"] >= 1
    assert finished["ticks"] >= 1 and finished["answers"]["count"] >= 3
    assert {queue["queue"] for queue in finished["queues"]} == set(QUEUES)


def test_jobs_die_of_different_causes_and_each_comes_with_the_command_that_brings_it_back(finished: dict[str, Any]):
    reasons = {one["reason"] for one in finished["causes"]}

    assert reasons >= {"explicit_fail", "max_attempts_exceeded", "timeout", "dependency_failed", "stalled"}
    assert sum(one["count"] for one in finished["causes"]) == finished["dead"]
    assert all(one["fingerprint"] in one["replay"] and finished["url"] in one["replay"] for one in finished["causes"])


def test_jobs_of_the_killed_worker_are_recovered_by_others(finished: dict[str, Any]):
    recovery = finished["recovery"]

    assert recovery["held"] >= 3 and recovery["recovered"] == recovery["held"]
    assert recovery["completed"] >= 3 and recovery["after"] >= recovery["lease"] / 2
    assert not alive(recovery["pid"])


async def test_the_shared_invariants_hold_on_the_store_it_leaves(finished: dict[str, Any]):
    store = connect(finished["url"])
    await store.connect()
    try:
        assert_holds(await gather(store))
    finally:
        await store.close()


def test_what_the_summary_tells_a_newcomer_to_type_works(finished: dict[str, Any], bare: Stage):
    for file in Path(finished["directory"]).glob("shop.db*"):
        if file.is_file():
            shutil.copy(file, ".")  # the other tests want it as it was left
    url = ("--url", "sqlite:///shop.db")
    [cards] = [one for one in finished["causes"] if one["error"].startswith("CardDeclined")]

    assert sum(queue["dead"] for queue in bare("queues", "--json", *url).json) == finished["dead"]
    kinds = [event["kind"] for event in bare("history", finished["recovery"]["example"], "--json", *url).json]
    assert "reclaimed" in kinds and kinds[-1] == "completed"
    bare("replay", "--error", cards["fingerprint"], "--yes", *url)
    bare("worker", "--app", "millrace.demo.shop:app", "--burst", *url)
    assert bare("status", cards["example"], "--json", *url).json["state"] == "completed"


def test_ctrl_c_ends_it_in_good_order_and_a_pipe_sees_no_control_characters(tmp_path: Path):
    with Shell(tmp_path).started("demo", "--dir", "shop") as process:
        assert process.stderr is not None
        told = ""
        while "jobs finished (" not in told:
            told += (line := process.stderr.readline())
            assert line, told
        children = _children(process.pid)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)

    assert process.returncode == exits.INTERRUPTED, (out, told + err)
    assert children and not any(map(alive, children))
    assert "The demo was interrupted." in out and "no job was lost" in out and "MILLRACE_URL=" in out
    assert " NO " not in out
    assert all(one == "\n" or one.isprintable() for one in out + told + err)


def _children(pid: int) -> list[int]:
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    return [int(word) for word in listed.stdout.split()]


# ── the audit can say no ──────────────────────────────────────────────────────────────────────


def _without(evidence: Evidence, gone: Callable[[Event], bool]) -> Evidence:
    return replace(evidence, events=[event for event in evidence.events if not gone(event)])


def _first(evidence: Evidence, kind: Kind, task: str = "") -> Event:
    return next(event for event in evidence.events if event.kind is kind and task in event.task)


def _job(evidence: Evidence, seq: int) -> Job:
    return next(job for job in evidence.jobs if job.seq == seq)


def _accepted_and_gone(evidence: Evidence) -> Evidence:
    return replace(evidence, answers=[*evidence.answers, ("", Enqueued("queued", "never-seen", 1, 1, State.WAITING))])


def _record_lost(evidence: Evidence) -> Evidence:
    return replace(evidence, jobs=evidence.jobs[1:])


def _event_lost(evidence: Evidence) -> Evidence:
    gone = _first(evidence, Kind.CLAIMED)
    return _without(evidence, lambda event: event is gone)


def _claimed_twice(evidence: Evidence) -> Evidence:
    first = _first(evidence, Kind.CLAIMED)
    at = evidence.events.index(first)
    again = replace(first, lease="another", worker="another")
    return replace(evidence, events=[*evidence.events[: at + 1], again, *evidence.events[at + 1 :]])


def _run_after_its_end(evidence: Evidence) -> Evidence:
    end = _first(evidence, Kind.COMPLETED)
    again = replace(end, kind=Kind.CLAIMED, state="running", lease="another")
    return replace(evidence, events=[*evidence.events, again])


def _settled_under_another_lease(evidence: Evidence) -> Evidence:
    end = _first(evidence, Kind.COMPLETED)
    stolen = replace(end, lease="another")
    return replace(evidence, events=[stolen if event is end else event for event in evidence.events])


def _order_broken(evidence: Evidence) -> Evidence:
    """The first two steps of a customer begin in each other's place."""
    first = _first(evidence, Kind.CLAIMED, "orders")
    group = _job(evidence, first.seq).spec.group
    second = next(
        event
        for event in evidence.events
        if event.kind is Kind.CLAIMED and event.seq != first.seq and _job(evidence, event.seq).spec.group == group
    )
    swapped = {first.seq: second.seq, second.seq: first.seq}
    events = [replace(event, seq=swapped.get(event.seq, event.seq)) for event in evidence.events]
    return replace(evidence, events=events)


def _two_of_a_customer_at_once(evidence: Evidence) -> Evidence:
    first = _first(evidence, Kind.CLAIMED, "orders")
    return _without(evidence, lambda event: event.seq == first.seq and event.state != "running" and event.n > 1)


def _child_before_parent(evidence: Evidence) -> Evidence:
    parent = _first(evidence, Kind.COMPLETED, "fetch_image")
    return replace(evidence, events=[*(event for event in evidence.events if event is not parent), parent])


def _tick_twice(evidence: Evidence) -> Evidence:
    tick = _first(evidence, Kind.ENQUEUED, "refresh_rates")
    return replace(evidence, events=[*evidence.events, tick])


def _too_fast(evidence: Evidence) -> Evidence:
    return replace(evidence, settings={"sms": QueueSettings(rate=0.1, burst=1)})


def _archived_and_running(evidence: Evidence) -> Evidence:
    end = _first(evidence, Kind.COMPLETED)
    wrong = replace(end, kind=Kind.ARCHIVED, state="running")
    return replace(evidence, events=[wrong if event is end else event for event in evidence.events])


def _never_taken_over(evidence: Evidence) -> Evidence:
    lost = _first(evidence, Kind.RECLAIMED)
    return _without(evidence, lambda event: event.seq == lost.seq and event.n >= lost.n)


async def test_the_audit_of_an_honest_history_holds(evidence: Evidence):
    assert [check for check in audit(evidence) if not check.ok] == []


@pytest.mark.parametrize(
    ("doctored", "name"),
    [
        (_accepted_and_gone, "no job was lost"),
        (_record_lost, "no job was lost"),
        (_event_lost, "no job was lost"),
        (_claimed_twice, "no job ran twice at the same time"),
        (_run_after_its_end, "no job ran twice at the same time"),
        (_settled_under_another_lease, "no job ran twice at the same time"),
        (_order_broken, "customers' orders kept their order"),
        (_two_of_a_customer_at_once, "customers' orders kept their order"),
        (_child_before_parent, "jobs waited for what they depend on"),
        (_tick_twice, "the schedule ticked once a second"),
        (_too_fast, "sms kept to its rate"),
        (_never_taken_over, "the killed worker's jobs were recovered"),
        (_archived_and_running, "every step was legal"),
    ],
)
async def test_the_audit_of_a_doctored_history_says_what_is_wrong(evidence: Evidence, doctored: Change, name: str):
    wrong = {check.name: check.text for check in audit(doctored(evidence)) if not check.ok}

    assert wrong.get(name)


def test_a_broken_promise_is_told_and_reported(finished: dict[str, Any]):
    checks = [{**check, "ok": False} for check in finished["audit"]["checks"]]
    lines = [line for line, _ in _Page({**finished, "audit": {"ok": False, "checks": checks}}, 80).lines()]

    assert sum(line.startswith("  NO ") for line in lines) == len(checks)
    assert any("A guarantee was broken" in line for line in lines)


# ── what is shown ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("width", [60, 80, 120, 200])
async def test_the_picture_fits_its_terminal_and_keeps_its_shape(evidence: Evidence, tmp_path: Path, width: int):
    run = Demo(DemoSettings(3.0, 120, 5, tmp_path))
    console = Console(file=io.StringIO(), width=width, height=30, force_terminal=True, color_system=None)
    screen = Screen(run, console)
    shapes = set()
    for number, event in enumerate(evidence.events):
        if number % 50 == 0:
            shapes.add(_shape(console, screen))
        run.board.read([event])
        run.now = event.at
    run.strike = Strike(run.now, 4711, 8)
    shapes.add(_shape(console, screen))

    assert len({height for height, _ in shapes}) == 1
    assert max(widest for _, widest in shapes) < width


def _shape(console: Console, screen: Screen) -> tuple[int, int]:
    with console.capture() as captured:
        console.print(screen.picture())
    lines = captured.get().splitlines()
    return len(lines), max(cell_len(line.rstrip()) for line in lines)


async def test_the_board_agrees_with_the_records(evidence: Evidence):
    board = Board(QUEUES)
    board.read(evidence.events)

    for state in State:
        shown = sum(line.now[state.value] for line in board.queues.values())
        assert shown == sum(job.state is state for job in evidence.jobs), state
    assert board.total == board.finished == len(evidence.jobs)
    assert not board.running
    assert sum(board.throughput(evidence.events[-1].at + 1_000, 4_000)) == len(evidence.jobs)
    assert {note.kind for note in board.notes} >= {"retry", "dead"}


def test_many_retries_do_not_drive_the_kill_off_the_picture():
    notes = [Note(1, "KILLED", "", "kill -9"), *(Note(n, "retry", "charge_card", "again") for n in range(2, 30))]

    assert _selected_notes(notes, 4) == [notes[0], *notes[-2:]]
    assert _selected_notes([*notes, notes[0], notes[0]], 3) == [notes[-1], notes[0], notes[0]]


def test_percentiles_are_values_that_were_there():
    assert percentiles([]) == {"p50": None, "p95": None, "p99": None}
    assert percentiles([3.0]) == {"p50": 3.0, "p95": 3.0, "p99": 3.0}
    assert percentiles(float(n) for n in range(1, 101)) == {"p50": 50.0, "p95": 95.0, "p99": 99.0}


# ── its options ───────────────────────────────────────────────────────────────────────────────


def test_a_seed_draws_the_same_jobs_again_and_another_one_others():
    def payloads(seed: int) -> list[tuple[float, list[bytes]]]:
        return [(one.at, [spec.payload for spec in one.jobs]) for one in draw(3.0, 90, seed).arrivals]

    assert payloads(1) == payloads(1) != payloads(2)


def test_a_dry_run_tells_the_jobs_and_makes_nothing(bare: Stage):
    told = bare("demo", "--dry-run", "--jobs", "500", "--json").json

    assert sum(told["tasks"].values()) == pytest.approx(500, rel=0.05)
    assert {row["task"]: int(row["jobs"]) for row in bare("demo", "--dry-run", "--jobs", "500").rows} == told["tasks"]
    assert os.listdir() == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--seconds", "nan"), "from 3 to 600"),
        (("--seconds", "2.9"), "from 3 to 600"),
        (("--jobs", "59"), "60"),
        (("--url", "sqlite:///jobs.db"), "remove --url"),
        (("--app", "shop:app"), "remove --app"),
        (("--dir", "taken"), "already contains a demo"),
        (("--dir", "file"), "is a file"),
        (("--dir", ""), "has no name"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_made(bare: Stage, arguments: tuple[str, ...], words: str):
    Path("taken").mkdir()
    Path("taken/shop.db").touch()
    Path("file").touch()

    ran = bare.refused("demo", *arguments)

    assert ran.code == exits.USAGE and words in ran.err
    assert sorted(os.listdir()) == ["file", "taken"]


def test_its_modules_load_without_rich_or_typer():
    program = (
        "import sys; import millrace.demo.figures; "
        "print(sorted({name.partition('.')[0] for name in sys.modules} & {'rich', 'typer', 'millrace'}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout == "['millrace']\n"
