"""Flows: jobs that are enqueued together and pass their results on."""

from __future__ import annotations

import asyncio
import sqlite3
import tracemalloc
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from millrace import (
    App,
    Bury,
    CallNext,
    Context,
    Flow,
    FlowHandle,
    InvalidInput,
    JobCancelled,
    JobFailed,
    JobNotFound,
    PayloadInvalid,
    UnknownDependency,
    WaitTimeout,
)
from millrace.testing import Harness, on_memory


@dataclass
class Picture:
    name: str = "untitled"
    width: int = 0


app = App("memory://")
broken: set[str] = set()


@app.task
async def load(name: str) -> Picture:
    if name in broken:
        raise Bury(f"{name} is broken")
    return Picture(name, 800)


@app.task
def halve(picture: Picture) -> Picture:
    return Picture(picture.name, picture.width // 2)


@app.task
async def width(picture: Picture) -> int:
    return picture.width


@app.task
async def name_of(picture: Picture) -> str:
    return picture.name


@app.task
async def album(pictures: list[Picture], title: str = "album") -> str:
    return f"{title}: {', '.join(f'{one.name} {one.width}' for one in pictures)}"


@app.task
async def label(parts: tuple[str, int]) -> str:
    return f"{parts[0]} is {parts[1]} wide"


@app.task
async def note(text: str) -> str:
    return f"noted {text}"


@app.task
async def anything(value: Any) -> Any:
    return value


@pytest.fixture
def mill():
    broken.clear()
    with on_memory(app) as harness:
        yield harness


async def test_the_results_of_a_gather_are_the_first_argument_of_the_next_task(mill: Harness):
    flow = await app.gather([load.spec("a"), load.spec("b")]).then(album, title="Two").enqueue()
    await mill.drain()

    assert await flow.result() == "Two: a 800, b 800"


async def test_each_step_of_a_chain_gets_the_result_of_the_step_before(mill: Harness):
    flow = await app.chain(load.spec("a"), halve, halve, width).enqueue()
    await mill.drain()

    assert await flow.result() == 200


async def test_a_gather_inside_a_chain_passes_one_result_to_all_of_its_tasks(mill: Harness):
    flow = await app.chain(load.spec("a"), app.gather(name_of, app.chain(halve, width)), label).enqueue()
    await mill.drain()

    assert await flow.result() == "a is 400 wide"


async def test_a_chain_inside_a_gather_is_one_part_of_it(mill: Harness):
    flow = await app.gather(app.chain(load.spec("a"), name_of), app.chain(load.spec("b"), halve, width)).enqueue()
    await mill.drain()

    assert await flow.result() == ("a", 400)
    assert await app.flows.handle(flow.id).result() == ("a", 400), "the same from the id alone"


async def test_a_gather_of_gathers_has_a_list_of_lists(mill: Harness):
    inner = [app.gather([note.spec(f"{row}{column}") for column in "ab"]) for row in "xy"]
    flow = await app.gather(inner).then(anything).enqueue()
    await mill.drain()

    assert await flow.result() == [["noted xa", "noted xb"], ["noted ya", "noted yb"]]


async def test_a_flow_may_have_thousands_of_steps(mill: Harness):
    flow = app.chain(note.spec("a"))
    for _ in range(2_000):
        flow = flow.then(note)

    assert len(flow.specs()) == 2_001


async def test_a_spec_as_a_later_step_only_waits_for_the_step_before(mill: Harness):
    flow = await app.chain(load.spec("a"), note.spec("done")).enqueue()
    assert [job.state async for job in flow.jobs()] == ["ready", "blocked"]
    await mill.drain()

    assert await flow.result() == "noted done"


async def test_a_flow_is_only_stored_by_its_enqueue_and_can_be_enqueued_again(mill: Harness):
    flow = app.chain(note.spec("a"), note)
    assert mill.all_enqueued() == []

    first, second = await flow.enqueue(), await flow.enqueue()
    await mill.drain()

    assert first.id != second.id
    assert await first.result() == await second.result() == "noted noted a"


async def test_a_flow_with_an_id_is_enqueued_once(mill: Harness):
    flow = app.gather([note.spec("a"), note.spec("b")]).then(anything)
    first, again = await flow.enqueue(id="summer"), await flow.enqueue(id="summer")

    assert (first.id, first.is_duplicate, again.is_duplicate) == ("summer", False, True)
    assert [job.id async for job in again.jobs()] == ["summer/1", "summer/2", "summer"]


async def test_a_failed_flow_that_is_enqueued_again_runs_only_what_failed(mill: Harness):
    flow = app.gather([load.spec("a"), load.spec("b")]).then(album)
    broken.add("b")
    await flow.enqueue(id="summer")
    await mill.drain(failures="keep")
    broken.clear()
    again = await flow.enqueue(id="summer")
    await mill.drain()

    assert again.is_duplicate
    assert [(job.id, job.record.replays) async for job in again.jobs()] == [
        ("summer/1", 0),
        ("summer/2", 1),
        ("summer", 1),
    ]
    assert await again.result() == "album: a 800, b 800"


async def test_a_flow_that_goes_on_does_not_repeat_the_parts_whose_records_are_removed(mill: Harness):
    flow = app.chain(note.spec("a"), note.options(delay="3d"), note)
    await flow.enqueue(id="night")
    await mill.drain()
    await mill.advance("2d")
    await app.jobs.delete("night/1")
    again = await flow.enqueue(id="night")

    assert (again.id, again.is_duplicate, again.enqueued.state.value) == ("night", True, "waiting")
    assert (await again.status()).states == {"removed": 1, "scheduled": 1, "blocked": 1}


async def test_a_flow_does_not_take_a_job_that_is_no_part_of_it(mill: Harness):
    await note.options(id="week/1").enqueue("mine")
    with pytest.raises(InvalidInput, match=r"job 'week/1' exists and is no part of flow 'week'.*another id"):
        await app.gather([note.spec("a"), note.spec("b")]).then(anything).enqueue(id="week")
    await note.options(id="month").enqueue("mine")
    with pytest.raises(InvalidInput, match="job 'month' exists"):
        await app.chain(note.spec("a"), note).enqueue(id="month")

    assert len(mill.all_enqueued()) == 2


async def test_a_flow_with_more_parts_than_the_flow_that_has_its_id_is_refused(mill: Harness):
    await app.gather([note.spec(text) for text in "abc"]).then(anything).enqueue(id="day")
    with pytest.raises(InvalidInput, match="flow 'day' exists with 4 jobs, but this flow has 6"):
        await app.gather([note.spec(text) for text in "abcde"]).then(anything).enqueue(id="day")

    assert len(mill.all_enqueued()) == 4


@pytest.mark.parametrize("blocking", [False, True])
@pytest.mark.parametrize(
    ("first", "then", "says", "cancelled"),
    [
        (["a", "b"], ["a"], "exists with 3 jobs, but this flow has 2. Nothing was enqueued", []),
        (["a"], ["a", "b", "c"], "has 4. Of this flow, 2 jobs were stored and then cancelled", ["f/2", "f/3"]),
        ([], ["a", "b"], "is no part of flow 'f'.*2 jobs were stored and then cancelled", ["f/1", "f/2"]),
    ],
)
async def test_a_flow_that_another_one_has_just_forestalled_leaves_no_jobs(
    mill: Harness,
    monkeypatch: pytest.MonkeyPatch,
    first: list[str],
    then: list[str],
    says: str,
    cancelled: list[str],
    blocking: bool,
):
    """Both have found no flow with this id before they enqueue."""

    async def found_none(*_: object) -> None: ...

    monkeypatch.setattr("millrace.app.flows.compose.repeated", found_none)
    if first:
        await app.gather([load.spec(name) for name in first]).then(album).enqueue(id="f")
    else:
        await load.options(id="f").enqueue("alone")
    second = app.gather([load.spec(name) for name in then]).then(album)

    enqueue = partial(asyncio.to_thread, second.sync.enqueue) if blocking else second.enqueue
    with pytest.raises(InvalidInput, match=says):
        await enqueue(id="f")

    assert sorted([job.id async for job in app.jobs.find(state="cancelled")]) == cancelled
    await mill.drain()
    assert (await app.jobs.handle("f").status()).state == "completed"


async def test_a_flow_id_that_looks_like_the_id_of_a_part_is_refused(mill: Harness):
    with pytest.raises(InvalidInput, match=r"'day/2' ends in a slash and a number.*'day-2'"):
        await app.chain(note.spec("a"), note).enqueue(id="day/2")


async def test_only_an_enqueue_with_an_id_reads_the_store(mill: Harness, monkeypatch: pytest.MonkeyPatch):
    store, reads = await app.connected(), 0
    get = store.get

    async def counted(ids: Any) -> Any:
        nonlocal reads
        reads += 1
        return await get(ids)

    monkeypatch.setattr(store, "get", counted)
    await app.chain(note.spec("a"), note).enqueue()
    unnamed, reads = reads, 0
    await app.chain(note.spec("a"), note).enqueue(id="named")

    assert (unnamed, reads) == (0, 1)


async def test_a_pool_with_partition_by_asks_for_the_partition_of_a_job_with_results(mill: Harness):
    @app.pool("frames", lanes=2, partition_by=lambda picture: picture.name)
    async def frame(picture: Picture) -> str:
        return f"framed {picture.name}"

    with pytest.raises(PayloadInvalid, match=r"options\(partition=…\)"):
        frame.spec(load.spec("a").output)
    flow = await app.chain(load.spec("a"), frame.options(partition="a")).enqueue()
    await mill.drain()
    assert await flow.result() == "framed a"


async def test_a_flow_that_cannot_be_enqueued_as_a_whole_enqueues_nothing(mill: Harness):
    with pytest.raises(UnknownDependency):
        await app.gather([note.spec("a"), note.options(after="nobody").spec("b")]).then(anything).enqueue()

    assert mill.all_enqueued() == []


async def test_the_status_of_a_flow_counts_its_jobs_and_names_those_that_failed(mill: Harness):
    broken.add("b")
    flow = await app.gather([load.spec(name) for name in "abc"]).then(album).enqueue()
    before = await flow.status()
    await mill.drain(failures="keep")
    after = await flow.status()

    assert (before.total, before.done, before.states, before.state) == (4, 0, {"ready": 3, "blocked": 1}, "running")
    assert (after.done, after.states, after.state) == (2, {"completed": 2, "dead": 2}, "failed")
    [failed] = after.failed
    assert (failed.args, failed.reason, failed.flow) == ({"name": "b"}, "explicit_fail", flow.id)
    assert repr(after) == f"<FlowStatus {flow.id!r}: 2 of 4 done, failed>"
    with pytest.raises(JobFailed):
        await flow.result()


async def test_the_status_of_a_flow_does_not_hold_the_payloads_of_all_its_jobs(mill: Harness):
    size, count = 10_000, 3_000
    flow = await app.gather([note.spec("x" * size) for _ in range(count)]).enqueue()
    store = await app.connected()
    get = store.get

    async def copied(ids: Any) -> Any:  # like a store that reads its records from elsewhere
        found = [job for job in await get(ids) if job is not None]
        return [replace(job, spec=replace(job.spec, payload=bytes(bytearray(job.payload)))) for job in found]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(store, "get", copied)
        tracemalloc.start()
        try:
            status = await flow.status()
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()

    assert (status.total, status.states) == (count, {"ready": count})
    assert most < size * count / 2


async def test_a_replay_brings_back_what_failed_and_what_died_with_it(mill: Harness):
    broken.add("b")
    flow = await app.gather([load.spec(name) for name in "abc"]).then(album).enqueue()
    await mill.drain(failures="keep")
    broken.clear()

    assert await flow.replay() == 2
    await mill.drain()

    assert await flow.result() == "album: a 800, b 800, c 800"


async def test_a_replay_repeats_a_completed_part_whose_result_is_no_longer_kept(mill: Harness):
    broken.add("b")
    flow = await app.gather([load.spec(name) for name in "ab"]).then(album).enqueue()
    await mill.drain(failures="keep")
    await mill.advance("20h")
    broken.clear()

    assert await flow.replay() == 3
    await mill.drain()

    assert await flow.result() == "album: a 800, b 800"


async def test_a_cancel_cancels_all_jobs_that_have_not_finished(mill: Harness):
    flow = await app.chain(load.spec("a"), halve, app.gather(name_of, width), label).enqueue()

    assert await flow.cancel() == 5
    assert await flow.cancel() == 0
    assert (await flow.status()).states == {"cancelled": 5}
    with pytest.raises(JobCancelled):
        await flow.result()

    assert await flow.replay() == 5
    await mill.drain()
    assert await flow.result() == "a is 400 wide"


async def test_the_result_of_a_flow_that_goes_on_is_a_timeout(mill: Harness):
    flow = await app.gather([note.spec("a"), note.options(delay="1h").spec("b")]).enqueue()
    await mill.drain()

    with pytest.raises(WaitTimeout):
        await flow.result()


async def test_a_gather_has_failed_as_soon_as_one_of_its_parts_has(mill: Harness):
    broken.add("b")
    flow = await app.gather([load.spec("b"), load.options(delay="1h").spec("a")]).enqueue()
    await mill.drain(failures="keep")

    with pytest.raises(JobFailed):
        await flow.result(wait="1m")


async def test_a_wait_for_a_gather_ends_soon_after_one_of_its_parts_has_failed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("millrace.app.flows.handle.LOOK_AGAIN", 0.05)
    own = App("memory://")
    waits, ended = asyncio.Event(), asyncio.Event()

    @own.task
    async def fail_later() -> None:
        await waits.wait()
        raise Bury("broken")

    @own.task
    async def last() -> None:
        await ended.wait()

    async with own.worker():
        flow = await own.gather(fail_later.spec(), last.spec()).enqueue()
        result = asyncio.create_task(flow.result(wait="5m"))
        await asyncio.sleep(0)
        waits.set()
        try:
            with pytest.raises(JobFailed):
                await asyncio.wait_for(result, 60)
        finally:
            ended.set()


async def test_the_results_of_a_gather_are_awaited_in_whatever_order_its_parts_end():
    own = App("memory://")

    @own.task
    async def nap(seconds: float) -> float:
        await asyncio.sleep(seconds)
        return seconds

    async with own.worker():
        flow = await own.gather([nap.spec(seconds) for seconds in (0.3, 0.0, 0.2, 0.1)]).enqueue()
        assert await flow.result(wait="1m") == [0.3, 0.0, 0.2, 0.1]


async def test_an_unknown_flow_is_not_found_and_a_job_is_no_flow(mill: Harness):
    job = await note.enqueue("a")
    flow = await app.chain(note.spec("b"), note).enqueue(id="flow")

    with pytest.raises(JobNotFound):
        await app.flows.handle("nobody").status()
    with pytest.raises(InvalidInput, match="was enqueued alone"):
        await app.flows.handle(job.id).status()
    with pytest.raises(InvalidInput, match="is a part of flow 'flow'"):
        await app.flows.handle("flow/1").status()
    assert (await app.flows.handle(flow.id, note).status()).total == 2


def test_what_is_no_part_of_a_flow_is_refused_with_the_way_out():
    with pytest.raises(InvalidInput, match=r"not of 3"):
        app.gather([note.spec("a"), 3])  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="at least one part"):
        app.gather([])
    with pytest.raises(InvalidInput, match="at least one step"):
        app.chain([])
    with pytest.raises(InvalidInput, match=r"flow\.enqueue\(id=…\)"):
        app.gather([note.options(id="mine").spec("a")]).specs()
    for flow in (
        app.chain(note.options(key="daily").spec("a"), note),
        app.chain(note.spec("a"), note.options(key="daily")),
    ):
        with pytest.raises(InvalidInput, match=r"key='daily'.*flow\.enqueue\(id=…\)"):
            flow.specs()
    with pytest.raises(InvalidInput, match=r"Begin with task\.spec"):
        app.chain(note, note).enqueue()  # type: ignore[attr-defined]
    one = note.spec("a")
    with pytest.raises(InvalidInput, match="twice in one flow"):
        app.gather([one, one]).specs()


# ── results as arguments ──────────────────────────────────────────────────────────────────────


def test_a_connection_is_refused_for_a_part_which_cannot_join_a_transaction_alone(mill: Harness):
    with closing(sqlite3.connect(":memory:")) as connection:
        joined = note.options(within=connection)
        for make in (lambda: joined.spec("a"), lambda: app.chain(note.spec("a"), joined).specs()):
            with pytest.raises(InvalidInput, match=r"flow\.enqueue\(within=…\)"):
                make()


async def test_the_output_of_a_spec_is_replaced_by_the_result_of_its_job(mill: Harness):
    first, second = load.spec("a"), load.spec("b")
    *_, job = await app.enqueue([first, second, album.spec([first.output, second.output], title="By hand")])
    await mill.drain()

    assert await job.result() == "By hand: a 800, b 800"


async def test_the_output_of_a_handle_is_an_argument_of_a_later_job(mill: Harness):
    loaded = await load.enqueue("a")
    await mill.drain()
    job = await halve.enqueue(loaded.output)
    await mill.drain()

    assert await job.result() == Picture("a", 400)
    assert (await job.status()).record.spec.after == (loaded.id,)


async def test_outputs_may_be_in_nested_lists_and_dicts(mill: Harness):
    parents = [note.spec(text) for text in "abc"]
    first, second, third = (parent.output for parent in parents)
    *_, job = await app.enqueue([*parents, anything.spec({"x": [first, second], "y": [third]})])
    await mill.drain()

    assert await job.result() == {"x": ["noted a", "noted b"], "y": ["noted c"]}


async def test_a_result_that_does_not_fit_the_parameter_buries_the_job_with_the_reason(mill: Harness):
    parent = note.spec("a")
    *_, job = await app.enqueue([parent, halve.spec(parent.output)])  # type: ignore[arg-type]
    await mill.drain(failures="keep")

    status = await job.status()
    assert (status.state, status.reason, status.attempt) == ("dead", "payload_invalid", 1)


async def test_values_and_outputs_in_one_list_are_refused(mill: Harness):
    with pytest.raises(PayloadInvalid, match="pass them as two parameters"):
        album.spec([load.spec("a").output, Picture("b", 1)])


@pytest.mark.parametrize("behind", [lambda job: [1, job], lambda job: [[], [job]], lambda job: {"a": 1, "b": job}])
async def test_an_output_behind_a_value_is_refused_and_not_stored_as_data(mill: Harness, behind: Callable[..., Any]):
    @app.task(name="loose")
    async def loose(value: Any, items: list = [], facts: dict = {}) -> None:  # noqa: B006
        del value, items, facts

    parent = await note.enqueue("secret")
    for output in (note.spec("secret").output, parent.output):
        with pytest.raises(PayloadInvalid, match="'value' has results of other jobs beside values"):
            loose.spec(behind(output))
    mixed = behind(note.spec("secret").output)
    with pytest.raises(PayloadInvalid, match="beside values"):
        await loose.enqueue_many([{"value": 1}, {"value": 2, "facts" if isinstance(mixed, dict) else "items": mixed}])


async def test_an_unknown_parameter_is_named_whatever_its_value_is(mill: Harness):
    with pytest.raises(PayloadInvalid, match="no parameter 'photo'"):
        halve.spec(photo=load.spec("a").output)  # type: ignore[call-arg]


async def test_the_other_arguments_of_such_a_job_are_validated_at_once(mill: Harness):
    with pytest.raises(PayloadInvalid, match="'title'"):
        album.spec([load.spec("a").output], title=7)  # type: ignore[arg-type]


async def test_a_result_that_is_never_kept_cannot_be_passed_on(mill: Harness):
    with pytest.raises(InvalidInput, match="keep_result=0"):
        halve.spec(load.options(keep_result=0).spec("a").output)


async def test_in_a_flow_the_result_of_a_part_is_kept_for_its_children_whatever_keep_result_says(mill: Harness):
    flow = await app.chain(load.options(keep_result=0).spec("a"), halve.options(delay="3h", keep_result="1d")).enqueue()
    await mill.advance("4h")

    assert await flow.result() == Picture("a", 400)


async def test_the_result_of_a_part_is_kept_for_its_children_whatever_the_app_and_the_worker_say():
    own = App("memory://", keep_result=0)

    @own.task
    async def double(number: int) -> int:
        return 2 * number

    async with own.worker(keep_result=0):
        flow = await own.chain(double.spec(1), double, double.options(keep_result="1h")).enqueue()
        assert await flow.result(wait="30s") == 8


@pytest.mark.parametrize("blocking", [False, True])
async def test_an_output_of_the_same_call_is_kept_whatever_the_worker_says(blocking: bool):
    own = App("memory://")

    @own.task
    async def double(number: int) -> int:
        return 2 * number

    async with own.worker(keep_result=0):
        first = double.spec(1)
        specs = [first, double.options(keep_result="1h").spec(first.output)]
        if blocking:
            *_, job_id = [job.id for job in await asyncio.to_thread(own.sync.enqueue, specs)]
        else:
            *_, job_id = [job.id for job in await own.enqueue(specs)]
        assert await own.jobs.result(job_id, wait="30s") == 4


async def test_enqueue_many_refuses_an_output_and_takes_specs(mill: Harness):
    loaded = await load.enqueue("a")
    with pytest.raises(PayloadInvalid, match=r"task\.spec"):
        await halve.enqueue_many([{"picture": loaded.output}])

    [job] = await halve.enqueue_many([halve.spec(loaded.output)])
    await mill.drain()
    assert await job.result() == Picture("a", 400)


async def test_a_job_that_runs_although_its_parent_died_gets_none(mill: Harness):
    broken.add("a")
    parent = load.spec("a")
    *_, job = await app.enqueue([parent, anything.options(on_dependency="run").spec(parent.output)])
    await mill.drain(failures="keep")

    assert (await job.status()).state == "completed"
    assert await job.result() is None


@pytest.mark.parametrize("removed_by", ["delete", "upkeep"])
async def test_a_job_that_runs_although_its_dead_parent_was_removed_gets_none(mill: Harness, removed_by: str):
    broken.add("a")
    parent = load.spec("a")
    *_, job = await app.enqueue([parent, anything.options(on_dependency="run", delay="60h").spec(parent.output)])
    await mill.drain(failures="keep")
    if removed_by == "delete":
        await app.jobs.delete(parent.id)
    else:
        await app.queue("default").set(keep_dead="1d")
    await mill.advance("2d")
    with pytest.raises(JobNotFound):
        await app.jobs.handle(parent.id).status()
    await mill.advance("12h")

    assert await job.result() is None


async def test_a_batch_task_gets_results_as_items(mill: Harness):
    @app.batch_task(name="in_batches", linger=0)
    async def in_batches(items: list[str]) -> list[str]:
        return [f"batch of {item}" for item in items]

    flow = await app.gather(app.chain(note.spec("a"), in_batches), app.chain(note.spec("b"), in_batches)).enqueue()
    await mill.drain(slots=5)

    assert await flow.result() == ("batch of noted a", "batch of noted b")


async def test_results_pass_between_serdes_and_through_extra_parameters(mill: Harness):
    @app.task(name="packed", serde="msgpack")
    async def packed(**values: Picture) -> dict[str, int]:
        return {name: picture.width for name, picture in values.items()}

    parents = [load.spec("a"), load.options(priority=3).spec("b")]
    job = packed.spec(left=parents[0].output, right=parents[1].output)
    *_, flow = await app.enqueue([*parents, job, anything.spec(job.output)])
    await mill.drain()

    assert await flow.result() == {"left": 800, "right": 800}


async def test_middleware_and_retries_see_the_completed_payload(mill: Harness):
    seen: list[bytes] = []

    async def watch(ctx: Context, call_next: CallNext) -> Any:
        seen.append(ctx.job.spec.payload)
        return await call_next()

    @app.task(name="watched", middleware=[watch], retry=[0])
    def watched(ctx: Context, text: str) -> str:
        if ctx.attempt == 1:
            raise ConnectionError
        return text

    flow = await app.chain(note.spec("a"), watched).enqueue()
    await mill.drain(failures="dead")

    assert await flow.result() == "noted a"
    assert seen == [b'{"text":"noted a"}'] * 2


async def test_a_harness_shows_the_other_arguments_of_a_job_with_results(mill: Harness):
    await app.gather([load.spec("a")]).then(album, title="One").enqueue()

    assert mill.args(mill.assert_enqueued(album, title="One")) == {"title": "One"}


async def test_a_flow_is_part_of_the_callers_transaction(tmp_path: Path):
    own = App(f"sqlite:///{tmp_path / 'jobs.db'}")

    @own.task
    async def double(number: int) -> int:
        return 2 * number

    async with own:
        connection = sqlite3.connect(tmp_path / "jobs.db")
        with closing(connection):
            undone = await own.chain(double.spec(1), double).enqueue(within=connection)
            connection.rollback()
            flow = await own.chain(double.spec(1), double).enqueue(within=connection)
            connection.commit()
        with pytest.raises(JobNotFound):
            await undone.status()
        async with own.worker():
            assert await flow.result(wait="30s") == 4


# ── ctx.parents ───────────────────────────────────────────────────────────────────────────────


async def test_a_handler_reads_its_parents_in_the_order_of_after(mill: Harness):
    @app.task(name="reader")
    async def reader(ctx: Context) -> list[str]:
        parents = await ctx.parents()
        first = parents[0].result_as(load)
        with pytest.raises(InvalidInput, match="not of 'note'"):
            parents[0].result_as(note)
        return [first.name, *(f"{parent.id} {parent.state} {parent.result}" for parent in parents[1:])]

    broken.add("c")
    parents = [load.spec("a"), note.options(id="b").spec("b"), load.options(id="c").spec("c")]
    *_, job = await app.enqueue([*parents, reader.options(after=parents, on_dependency="run").spec()])
    await mill.drain(failures="keep")

    assert await job.result() == ["a", "b completed noted b", "c dead None"]


async def test_a_def_handler_reads_its_parents_too(mill: Harness):
    @app.task(name="blocking_reader")
    def reader(ctx: Context) -> list[str]:
        return [parent.result_as(note) for parent in ctx.parents_sync()]

    parent = note.spec("a")
    *_, job = await app.enqueue([parent, reader.options(after=parent).spec()])
    await mill.drain()

    assert await job.result() == ["noted a"]


# ── a job that continues in another ───────────────────────────────────────────────────────────


async def test_a_job_and_the_job_that_continues_it_know_each_other(mill: Harness):
    @app.task(name="first")
    async def first(ctx: Context) -> str:
        return ctx.enqueue(second, 2)

    @app.task(name="second")
    async def second(ctx: Context, left: int) -> str:
        if left:
            ctx.enqueue(second, left - 1)
        return f"{left} left"

    job = await first.enqueue()
    with pytest.raises(WaitTimeout):
        await job.result(follow=True)
    await mill.drain()

    child = await job.result()
    [status, of_child] = [await job.status(), await app.jobs.handle(child).status()]
    assert (status.continued_by, status.enqueued_by) == ((child,), None)
    assert of_child.enqueued_by == job.id
    assert await job.result(follow=True) == "0 left"
    assert await app.jobs.result(child) == "2 left"


# ── the blocking API ──────────────────────────────────────────────────────────────────────────


def test_a_flow_has_a_blocking_api():
    with on_memory(app) as mill:
        made: Flow[str] = app.gather([load.spec("a"), load.spec("b")]).then(album)
        flow = made.sync.enqueue(id="sync")
        assert flow.status().total == 3
        assert flow.cancel() == 3
        assert flow.replay() == 3
        mill.sync.drain()

        assert flow.result() == "album: a 800, b 800"
        assert app.sync.jobs.handle("sync").result(follow=True) == "album: a 800, b 800"
        assert [job.id for job in flow.jobs()] == ["sync/1", "sync/2", "sync"]
        assert app.sync.flows.handle("sync", album).result() == "album: a 800, b 800"


async def test_call_waits_for_the_result_of_the_flow():
    own = App("memory://")

    @own.task
    async def double(number: int) -> int:
        return 2 * number

    async with own.worker():
        assert await own.chain(double.spec(1), double, double).call() == 8
        handle: FlowHandle[int] = await own.chain(double.spec(1), double).enqueue()
        assert await handle.result(wait="10s") == 4
        assert await asyncio.to_thread(own.chain(double.spec(3), double).sync.call) == 12
