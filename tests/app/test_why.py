"""Why is this job not running? One pure rule, for the command line, the HTTP API and the dashboard."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from millrace import App
from millrace.app.why import Surroundings, explain, why_waiting
from millrace.domain.job import Job, Spec, State
from millrace.domain.request import Claim, WorkerInfo
from millrace.domain.settings import Limits, QueueSettings
from millrace.store.memory import MemoryStore

NOW = 1_000_000
ABLE = WorkerInfo("w", ("mail",), ("send",), slots=2)


def job(**more: Any) -> Job:
    spec = Spec("j", "send", "mail", **more.pop("spec", {}))
    return Job(spec, 1, 1, State.WAITING, NOW - 10, NOW - 10, open=True, **more)


def around(**more: Any) -> Surroundings:
    given = {"settings": QueueSettings(), "task_limits": Limits(), "running": 0, "open_parents": (), "workers": (ABLE,)}
    return Surroundings(**{**given, **more})


@pytest.mark.parametrize(
    ("one", "place", "expected"),
    [
        (job(), around(), "next"),
        (job(), around(ahead=3), "behind_others"),
        (job(), around(settings=QueueSettings(paused=True)), "queue_paused"),
        (job(lane=1), around(settings=QueueSettings(lanes=2, paused_lanes=(1,))), "lane_paused"),
        (job(blocked=2), around(open_parents=("a", "b")), "blocked"),
        (msgspec.structs.replace(job(), available_at=NOW + 5_000), around(), "not_due"),
        (msgspec.structs.replace(job(spec={"group": "g"}), open=False), around(), "line_busy"),
        (job(), around(settings=QueueSettings(max_running=3), running=3), "queue_limit"),
        (job(), around(task_limits=Limits(max_running=0)), "task_limit"),
        (job(), around(task_limits=Limits(max_running=2), running_of_task=2), "task_limit"),
        (job(), around(task_limits=Limits(max_running=2), running=5, running_of_task=1), "next"),
        (job(), around(settings=QueueSettings(rate=0.5)), "queue_rate"),
        (job(), around(workers=()), "no_worker"),
        (job(), around(workers=(WorkerInfo("w", ("other",), ("send",)),)), "queue_unserved"),
        (job(), around(workers=(WorkerInfo("w", ("mail",), ("other",)),)), "task_unknown"),
        (job(), around(workers=(msgspec.structs.replace(ABLE, running=("a", "b")),)), "slots_busy"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_thing_that_holds_a_job_back_is_named(one: Job, place: Surroundings, expected: str):
    assert [reason.code for reason in explain(one, place, NOW)] == [expected]


def test_the_strongest_reason_comes_first_and_none_is_left_out():
    held = msgspec.structs.replace(job(blocked=1), available_at=NOW + 60_000, failures=2)
    place = around(settings=QueueSettings(paused=True, max_running=1), running=1, open_parents=("p",), workers=())

    reasons = explain(held, place, NOW)

    codes = ["queue_paused", "blocked", "not_due", "queue_limit", "no_worker"]
    assert [reason.code for reason in reasons] == codes
    assert str(reasons[0]) == "queue mail is paused: millrace resume mail"
    assert reasons[2].text == "it is due in 1m after failure 2"


async def test_a_tasks_limit_is_compared_with_what_runs_of_the_task_over_all_queues():
    app = App(MemoryStore())
    async with app:
        store = await app.connected()
        await app.limit("limited", max_running=2)
        await store.beat(WorkerInfo("w", ("mail",), ("limited", "other"), slots=9), 60_000)
        await store.enqueue([Spec(f"other-{n}", "other", "mail") for n in range(3)])
        await store.claim(Claim(("mail",), "w", 3))
        await store.enqueue([Spec("held", "limited", "mail")])
        codes = []
        for number in range(3):
            [held] = await store.get(["held"])
            assert held is not None
            codes.append([reason.code for reason in await why_waiting(app, store, held, await store.now())])
            await store.enqueue([Spec(f"elsewhere-{number}", "limited", f"queue-{number}")])
            await store.claim(Claim((f"queue-{number}",), "w"))

    assert codes == [["next"], ["next"], ["task_limit"]]


@pytest.mark.parametrize("state", [State.RUNNING, State.COMPLETED, State.DEAD, State.CANCELLED])
def test_a_job_that_does_not_wait_needs_no_reason(state: State):
    assert explain(msgspec.structs.replace(job(), state=state), around(workers=()), NOW) == []
