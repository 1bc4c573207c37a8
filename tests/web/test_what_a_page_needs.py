"""What the dashboard needs of the API: facts in lists, the cause of a dead job, the step that is not over yet."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.domain.change import Change
from millrace.domain.job import Spec
from millrace.domain.outcome import Failure
from millrace.domain.request import Claim
from millrace.views.throughput import STEP, Mark, point_view, series, unfinished
from millrace.web.routes import dead
from tests.web.stage import Web

NOW = 1_800_000_000_000


def spec(job_id: str, **more: Any) -> Spec:
    return Spec(job_id, "work", "default", b"{}", token=job_id, **more)


async def test_a_list_tells_what_jobs_wait_for_and_until_when_leases_hold(web: Web):
    store = await web.app.connected()
    await store.enqueue([spec("parent", timeout=90_000)])
    [claimed] = await store.claim(Claim(("default",), "w", 1, lease=30_000))
    await store.enqueue([spec("child", after=("parent",), on_dependency="wait")])

    listed = {job["id"]: job for job in (await web.get("/api/jobs"))["jobs"]}

    assert (listed["child"]["blocked_by"], listed["child"]["lease_until"]) == (1, None)
    assert listed["parent"]["timeout"] == 90
    whole = await web.get("/api/jobs/parent")
    assert listed["parent"]["lease_until"] == whole["lease_until"] is not None
    assert claimed.id == "parent"


async def test_a_job_tells_what_becomes_of_it_when_a_parent_fails(web: Web):
    store = await web.app.connected()
    await store.enqueue([spec("parent"), spec("usual", after=("parent",))])
    await store.enqueue([spec("waits", after=("parent",), on_dependency="wait")])

    assert (await web.get("/api/jobs/usual"))["on_dependency"] == "bury"
    assert (await web.get("/api/jobs/waits"))["on_dependency"] == "wait"


async def test_a_dead_job_names_its_cause_as_the_dead_letters_do(web: Web):
    store = await web.app.connected()
    await store.enqueue([spec("a"), spec("b"), spec("alive")])
    for job in await store.claim(Claim(("default",), "w", 2)):
        await store.settle([(job.lease, Change.bury(Failure("Broken", f"host {job.id!r} is away"), "timeout"))])

    [cause] = (await web.get("/api/dead"))["causes"]

    assert cause["count"] == 2
    assert [(await web.get(f"/api/jobs/{name}"))["fingerprint"] for name in "ab"] == [cause["fingerprint"]] * 2
    assert (await web.get("/api/jobs/alive"))["fingerprint"] is None


async def test_causes_are_looked_for_further_from_where_a_short_look_ended(web: Web, monkeypatch: pytest.MonkeyPatch):
    store = await web.app.connected()
    await store.enqueue([spec(f"job-{n}") for n in range(5)])
    for job in await store.claim(Claim(("default",), "w", 5)):
        await store.settle([(job.lease, Change.bury(Failure("Broken", "as always"), "timeout"))])
    monkeypatch.setattr(dead, "PAGE", 2)
    monkeypatch.setattr(dead, "BUDGET", -1)

    seen = []
    query: dict[str, str] = {}
    while True:
        answer = await web.get("/api/dead", **query)
        seen.append(answer["total"])
        if answer["cursor"] is None:
            break
        assert not answer["complete"]
        query = {"cursor": answer["cursor"]}

    assert answer["complete"]
    assert sum(seen) == 5 and len(seen) >= 3


def test_the_step_that_is_not_over_counts_from_where_the_last_ended():
    marks = [Mark(NOW, 100, 5), Mark(NOW + STEP, 130, 5), Mark(NOW + STEP + 2_000, 137, 6)]

    assert unfinished(marks) == (NOW + STEP + 2_000, 7, 1)
    assert unfinished([Mark(NOW + 3, 9, 9)]) == (NOW + 3, 0, 0)


@pytest.mark.parametrize("offset", [1, 1_215, 3_335, 5_000, 9_999])
def test_interpolated_points_add_up_to_what_was_counted(offset: int):
    marks = [Mark(NOW, 0, 0), Mark(NOW + 8 * STEP + offset, 10, 1), Mark(NOW + 20 * STEP + 7, 11, 3)]

    points = [point_view(point) for point in [*series(marks), unfinished(marks)]]

    assert sum(point.completed for point in points) == pytest.approx(11, abs=1e-9)
    assert sum(point.died for point in points) == pytest.approx(3, abs=1e-9)


async def test_what_completed_just_now_is_in_the_step_that_is_not_over(web: Web):
    store = await web.app.connected()
    await store.enqueue([spec("done")])
    [job] = await store.claim(Claim(("default",), "w", 1))
    await store.settle([(job.lease, Change.completed())])

    flow = await web.get("/api/throughput")

    told = [*flow["points"], flow["unfinished"]]
    assert sum(point["completed"] for point in told) == pytest.approx(1, abs=1e-9)
    assert flow["unfinished"]["at"] == flow["now"]
