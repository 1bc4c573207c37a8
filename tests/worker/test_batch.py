"""Batch handlers: many jobs in one call, and each of them still a job of its own."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from typing import Any

import pytest

from millrace import App, Bury, Context, InvalidInput, PayloadInvalid, Retry, RetryPolicy, Snooze, Spec, State
from millrace.domain.event import Kind
from millrace.domain.request import Cancelled
from tests.worker.stage import Stage, until, virtual


@dataclass
class OrderContext:
    customer: str


@dataclass
class Mail:
    to: str
    copies: int = 1


@virtual
async def test_jobs_enqueued_one_by_one_are_handled_together_and_each_has_its_result(stage: Stage):
    calls: list[int] = []

    @stage.app.batch_task(size=100, linger=0.05)
    async def send(mails: list[Mail]) -> list[str]:
        calls.append(len(mails))
        assert all(isinstance(mail, Mail) for mail in mails)
        return [f"sent to {mail.to}" for mail in mails]

    answers = [await send.enqueue(Mail(f"m{n}")) for n in range(250)]
    await stage.burst(slots=10)

    assert calls == [100, 100, 50]
    jobs = [await stage.job(answer.id) for answer in answers]
    assert [send.load_result(job.result) for job in jobs] == [f"sent to m{n}" for n in range(250)]
    assert {(job.attempt, job.state) for job in jobs} == {(1, State.COMPLETED)}
    assert await stage.kinds(answers[7].id) == [Kind.ENQUEUED, Kind.CLAIMED, Kind.COMPLETED]
    assert jobs[3].payload == b'{"item":{"to":"m3","copies":1}}'


async def test_a_plain_function_handles_its_batch_in_a_thread():
    stage = Stage()
    threads: list[threading.Thread] = []

    @stage.app.batch_task(size=10)
    def double(numbers: list[int]) -> list[int]:
        threads.append(threading.current_thread())
        return [2 * number for number in numbers]

    async with stage.working():
        assert await asyncio.gather(*(double.call(n) for n in range(25))) == [2 * n for n in range(25)]

    assert threading.main_thread() not in threads
    assert double([1, 2]) == [2, 4]  # it is still that function


@virtual
async def test_each_job_ends_as_the_handler_says_of_it(stage: Stage):
    @stage.app.batch_task(size=10, max_attempts=3)
    async def work(numbers: list[int]) -> list[str | Retry | Snooze | Bury | Exception | None]:
        ends: list[Any] = ["fine", None, Retry("later", after=60), Snooze(30), Bury("never"), ValueError("odd")]
        return [ends[number] for number in numbers]

    answers = [await work.enqueue(n) for n in range(6)]
    await stage.burst()
    fine, none, retried, snoozed, buried, failed = [await stage.job(answer.id) for answer in answers]

    assert (fine.result, none.result, none.state) == (b'"fine"', b"null", State.COMPLETED)
    assert (retried.state, retried.failures) == (State.WAITING, 1)
    assert retried.available_at - await stage.store.now() > 50_000
    assert (snoozed.snoozes, snoozed.failures) == (1, 0)
    assert (buried.reason, buried.error and buried.error.message) == ("explicit_fail", "never")
    assert (failed.state, failed.failures) == (State.WAITING, 1)
    assert failed.error is not None and (failed.error.type, failed.error.message) == ("ValueError", "odd")


@virtual
async def test_answers_may_come_as_a_mapping_by_id_or_by_index(stage: Stage):
    @stage.app.batch_task(size=10, max_attempts=1)
    async def work(contexts: list[Context], letters: list[str]) -> dict[Any, str]:
        return {contexts[0].id: letters[0].upper(), 1: letters[1].upper()}

    answers = [await work.enqueue(letter) for letter in "abc"]
    await stage.burst()
    jobs = [await stage.job(answer.id) for answer in answers]

    assert [job.result for job in jobs[:2]] == [b'"A"', b'"B"']
    assert jobs[2].state is State.DEAD
    assert jobs[2].error is not None and "returned nothing for job" in jobs[2].error.message


@pytest.mark.parametrize("answer", [["one too few"], "text", 3])
async def test_an_answer_that_fits_no_jobs_fails_each_with_the_reason(answer: Any):
    stage = Stage()

    @stage.app.batch_task(size=10, max_attempts=1)
    async def work(numbers: list[int]):
        return answer

    answers = [await work.enqueue(n) for n in range(2)]
    await stage.burst()

    for one in answers:
        job = await stage.job(one.id)
        assert job.error is not None and "got 2 jobs and returned" in job.error.message


class NeedsWords(Exception):
    def __init__(self, words: str) -> None:
        super().__init__(words)


class Untold:
    def __repr__(self) -> str:
        raise LookupError("nobody knows what I am")


class Unreadable(dict[Any, Any]):
    def get(self, key: Any, default: Any = None) -> Any:
        raise LookupError("no such thing")


@pytest.mark.parametrize(
    ("answer", "failed"),
    [
        ([1, NeedsWords, 3], {1: "TypeError"}),
        ([1, GeneratorExit(), 3], {1: "GeneratorExit"}),
        (GeneratorExit(), dict.fromkeys(range(3), "GeneratorExit")),
        (Untold(), dict.fromkeys(range(3), "LookupError")),
        (Unreadable(), dict.fromkeys(range(3), "LookupError")),
    ],
)
@pytest.mark.parametrize("in_thread", [False, True])
async def test_whatever_a_handler_answers_every_job_has_an_end(answer: Any, failed: dict[int, str], in_thread: bool):
    stage = Stage()

    def work(numbers: list[int]) -> Any:
        if isinstance(answer, BaseException):
            raise answer
        return answer

    async def work_async(numbers: list[int]) -> Any:
        return work(numbers)

    task = stage.app.batch_task(size=3, max_attempts=1)(work if in_thread else work_async)
    answers = await task.enqueue_many([(n,) for n in range(3)])
    async with asyncio.timeout(60):
        worker = await stage.burst()

    jobs = [await stage.job(one.id) for one in answers]
    assert {n: job.error.type for n, job in enumerate(jobs) if job.error is not None} == failed
    assert (worker.stats.completed, worker.stats.buried) == (3 - len(failed), len(failed))


@virtual
async def test_an_error_of_the_whole_is_a_failure_of_each_with_its_own_budget(stage: Stage):
    sizes: list[int] = []

    @stage.app.batch_task(size=10, retry=RetryPolicy(initial=1_000, maximum=1_000, jitter=0))
    async def work(numbers: list[int]) -> None:
        sizes.append(len(numbers))
        raise ConnectionError("no route")

    first = await work.options(max_attempts=1).enqueue(1)
    second = await work.options(max_attempts=2).enqueue(2)
    async with stage.working():
        await stage.until(second.id)
    once, twice = await stage.job(first.id), await stage.job(second.id)

    assert sizes == [2, 1]
    assert (once.attempt, once.reason) == (1, "max_attempts_exceeded")
    assert (twice.attempt, twice.failures) == (2, 2)
    assert twice.error is not None and "no route" in twice.error.traceback


@virtual
async def test_a_payload_that_does_not_fit_is_buried_alone(stage: Stage):
    seen: list[int] = []

    @stage.app.batch_task(size=10)
    async def work(numbers: list[int]) -> None:
        seen.extend(numbers)

    good = await work.enqueue(1)
    await stage.store.enqueue([Spec("odd", "work", payload=b'{"item":"text"}')])
    await stage.burst()

    assert (await stage.job("odd")).reason == "payload_invalid"
    assert (await stage.job(good.id)).state is State.COMPLETED
    assert seen == [1]
    with pytest.raises(PayloadInvalid):
        await work.enqueue("text")  # type: ignore[arg-type]


@virtual
async def test_a_batch_starts_when_it_is_full_or_the_first_has_waited_long_enough(stage: Stage):
    started: list[tuple[int, float]] = []

    @stage.app.batch_task(size=3, linger=10)
    async def work(numbers: list[int]) -> None:
        started.append((len(numbers), asyncio.get_running_loop().time()))

    async with stage.working() as worker:
        for n in range(3):
            await work.enqueue(n)
        await until(lambda: worker.stats.completed == 3)
        begun = asyncio.get_running_loop().time()
        await work.enqueue(4)
        await asyncio.sleep(5)
        last = await work.enqueue(5)  # joins the one that waits
        await stage.until(last.id)

    assert [size for size, _ in started] == [3, 2]
    assert started[0][1] < 9
    assert 9.5 < started[1][1] - begun < 12


@virtual
async def test_a_batch_that_waits_for_nobody_still_takes_all_that_is_there(stage: Stage):
    sizes: list[int] = []
    stage.store.delays["claim"] = 0.5  # longer than it lingers

    @stage.app.batch_task(size=100, linger=0)
    async def work(numbers: list[int]) -> None:
        sizes.append(len(numbers))

    await work.enqueue_many([(n,) for n in range(230)])
    await stage.burst(slots=10)

    assert sizes == [100, 100, 30]


@virtual
async def test_a_batch_takes_one_slot_and_leaves_the_others_to_other_tasks(stage: Stage):
    most = {"batches": 0, "singles": 0, "now": 0}

    @stage.app.batch_task(size=50, linger=1)
    async def many(numbers: list[int]) -> None:
        most["batches"] = max(most["batches"], len(numbers))
        await asyncio.sleep(10)

    @stage.app.task
    async def single() -> None:
        most["now"] += 1
        most["singles"] = max(most["singles"], most["now"])
        await asyncio.sleep(1)
        most["now"] -= 1

    await many.enqueue_many([(n,) for n in range(50)])
    await single.enqueue_many([{}] * 8)
    worker = await stage.burst(slots=4)

    assert most == {"batches": 50, "singles": 3, "now": 0}
    assert worker.stats.completed == 58


@virtual
async def test_the_slots_that_batches_shared_are_given_back(stage: Stage):
    now, most = 0, 0

    @stage.app.batch_task(size=25, linger=1)
    async def many(numbers: list[int]) -> None:
        await asyncio.sleep(1)

    @stage.app.task(priority=0)
    async def single() -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(1)
        now -= 1

    await many.options(priority=5).enqueue_many([(n,) for n in range(100)])
    await single.enqueue_many([{}] * 30)
    await stage.burst(slots=3)

    assert most == 3


@virtual
async def test_one_slot_is_enough_for_full_batches_also_behind_slow_middleware(stage: Stage):
    sizes: list[int] = []

    @stage.app.middleware
    async def slow(ctx: Context, call_next: Any) -> Any:
        await asyncio.sleep(0.2)
        return await call_next()

    @stage.app.batch_task(size=20, linger=5)
    async def many(numbers: list[int]) -> None:
        sizes.append(len(numbers))

    await many.enqueue_many([(n,) for n in range(40)])
    await stage.burst(slots=1)

    assert sizes == [20, 20]


@virtual
async def test_the_timeout_begins_with_the_batch_and_stops_the_handler_when_all_are_past_it(stage: Stage):
    ended: list[str] = []

    @stage.app.batch_task(size=3, linger=20, timeout=5, max_attempts=1)
    async def slow(numbers: list[int]) -> None:
        try:
            await asyncio.sleep(1_000)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    answers = [await slow.enqueue(n) for n in range(2)]
    await stage.burst()

    assert [(await stage.job(answer.id)).reason for answer in answers] == ["timeout", "timeout"]
    assert ended == ["cancelled"]


@virtual
async def test_a_job_that_is_cancelled_leaves_its_batch_alone(stage: Stage):
    told: list[bool] = []

    @stage.app.batch_task(size=3, linger=1, lease=3)
    async def work(contexts: list[Context], numbers: list[int]) -> list[str]:
        await asyncio.sleep(20)
        told.extend(ctx.cancelled.is_set() for ctx in contexts)
        return ["done"] * len(numbers)

    answers = [await work.enqueue(n) for n in range(3)]
    async with stage.working(grace=1) as worker:
        await until(lambda: worker.stats.running == 3)
        await asyncio.sleep(2)
        assert await stage.app.jobs.cancel(answers[1].id, running="request") == Cancelled.REQUESTED
        await stage.until(answers[1].id)
        assert (worker.stats.running, worker.stats.zombies) == (2, 1)
        ends = [await stage.until(answer.id) for answer in answers]
        assert worker.stats.zombies == 0

    assert [end.state for end in ends] == [State.COMPLETED, State.CANCELLED, State.COMPLETED]
    assert told == [False, True, False]


@virtual
async def test_a_stop_gives_back_gathering_and_running_batches_uncounted(stage: Stage):
    @stage.app.batch_task(size=3, linger=600)
    async def work(numbers: list[int]) -> None:
        await asyncio.sleep(1_000)

    answers = [await work.enqueue(n) for n in range(5)]
    async with stage.working() as worker:
        await until(lambda: worker.stats.running == 5)
        await asyncio.sleep(1)
        await worker.stop(deadline=1)

    for answer in answers:
        job = await stage.job(answer.id)
        assert (job.state, job.failures, job.releases) == (State.WAITING, 0, 1)


@virtual
async def test_a_stop_does_not_wait_for_a_batch_to_fill(stage: Stage):
    @stage.app.batch_task(size=10, linger=600)
    async def work(numbers: list[int]) -> list[int]:
        await asyncio.sleep(1)
        return numbers

    answers = [await work.enqueue(n) for n in range(3)]
    async with stage.working() as worker:
        await until(lambda: worker.stats.running == 3)
        await asyncio.sleep(1)
        begun = asyncio.get_running_loop().time()
        await worker.stop()
        assert asyncio.get_running_loop().time() - begun < 2

    assert [(await stage.job(answer.id)).state for answer in answers] == [State.COMPLETED] * 3


async def test_a_batch_in_a_thread_that_ignores_its_abort_is_counted_until_it_returns():
    stage = Stage()
    let_go = threading.Event()

    @stage.app.batch_task(size=2, timeout=0.1, max_attempts=1)
    def deaf(numbers: list[int]) -> None:
        if 0 in numbers:
            let_go.wait(60)

    @stage.app.task
    def fine() -> str:
        return "fine"

    answers = [await deaf.enqueue(n) for n in range(2)]
    async with stage.working(slots=2, threads=1, grace=0.1) as worker:
        assert [(await stage.until(answer.id)).reason for answer in answers] == ["timeout", "timeout"]
        assert (worker.stats.zombies, worker.stats.abandoned) == (2, 2)
        assert await fine.call() == "fine"
        let_go.set()
        await until(lambda: worker.stats.zombies == 0)
        assert await fine.call() == "fine"


async def test_a_batch_that_is_stopped_before_it_got_a_thread_never_starts():
    stage = Stage()
    started: list[int] = []

    @stage.app.batch_task(size=1)
    def work(contexts: list[Context], numbers: list[int]) -> None:
        started.extend(numbers)
        contexts[0].cancelled.wait(20)
        contexts[0].check()

    answers = await work.enqueue_many([(0,), (1,)])
    async with stage.working(slots=2, threads=1) as worker:
        await until(lambda: worker.stats.running == 2 and started)
        await worker.stop(deadline=0.1)

    await asyncio.sleep(0.05)
    assert len(started) == 1
    assert [(await stage.job(answer.id)).releases for answer in answers] == [1, 1]


@virtual
async def test_middleware_is_around_each_job_of_a_batch(stage: Stage):
    seen: list[str] = []

    @stage.app.middleware
    async def note(ctx: Context, call_next: Any) -> Any:
        seen.append(f"before {ctx.id}")
        result = await call_next()
        seen.append(f"after {ctx.id}")
        return result + 100

    @stage.app.batch_task(size=2)
    async def work(numbers: list[int]) -> list[int]:
        seen.append(f"work on {len(numbers)}")
        return numbers

    for n in range(2):
        await work.options(id=f"j{n}").enqueue(n)
    await stage.burst()

    assert seen == ["before j0", "before j1", "work on 2", "after j0", "after j1"]
    assert [(await stage.job(f"j{n}")).result for n in range(2)] == [b"100", b"101"]


@virtual
async def test_contexts_carry_children_and_progress_of_their_own_job(stage: Stage):
    @stage.app.task
    async def follow(n: int) -> int:
        return n

    @stage.app.batch_task(size=3)
    async def work(contexts: list[Context], numbers: list[int]) -> list[Any]:
        for ctx, number in zip(contexts, numbers, strict=True):
            ctx.enqueue(follow.options(id=f"after {number}"), number)
        return [Bury("no") if number == 1 else number for number in numbers]

    for n in range(3):
        await work.enqueue(n)
    await stage.burst()

    assert [(job.result if job else None) for job in await stage.store.get([f"after {n}" for n in range(3)])] == [
        b"0",
        None,  # what is buried carries nothing
        b"2",
    ]


def test_what_cannot_be_a_batch_handler_is_refused():
    app = App()

    with pytest.raises(InvalidInput, match="takes a list of items, or a list of contexts and"):
        app.batch_task(name="w", size=2)(lambda: None)  # type: ignore[misc, arg-type]
    with pytest.raises(InvalidInput, match="size must be a whole number"):
        app.batch_task(name="w", size=0)(lambda items: None)

    def wrong(number: int) -> None: ...
    def wrong_place(items: list[int]) -> None: ...

    def scattered(*items: int) -> None: ...
    def named(*, items: list[int]) -> None: ...
    def backwards(items: list[int], contexts: list[Context]) -> None: ...
    def generator(items: list[int]) -> Any:
        yield from items

    def unheard_of(items: list[Unheard]) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    for misshapen in (scattered, named, backwards):
        with pytest.raises(InvalidInput, match="takes a list of items, or a list of contexts and"):
            app.batch_task(name="w")(misshapen)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="it cannot be a generator"):
        app.batch_task(name="w")(generator)
    with pytest.raises(InvalidInput, match="'list\\[Unheard\\]' cannot be resolved"):
        app.batch_task(name="w")(unheard_of)
    with pytest.raises(InvalidInput, match="'number' must be a list"):
        app.batch_task(name="w")(wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="cannot reach"):
        app.batch_task(name="w", process=True)(wrong_place)
    with pytest.raises(InvalidInput, match="linger"):
        app.batch_task(name="w", linger=-1)(lambda items: None)
    assert app.tasks == {}


def test_an_item_may_have_context_in_its_name():
    def handle(contexts, items: list[OrderContext]) -> None: ...
    def handle_plain(things: list[Mail]) -> None: ...

    assert App().batch_task(name="w")(handle).takes_contexts
    assert not App().batch_task(name="w")(handle_plain).takes_contexts
