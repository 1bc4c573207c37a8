"""Wrong use of the public API: each function holds one mistake, on the line that says `ignore`.

Both type checkers must see every one of them: test_snippets.py takes the comments away and looks.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from millrace import App, Context, Depends, Flow, Job, JobHandle, LocalEvent, Retry, Snooze, Task, testing

app = App("memory://")


@app.task
async def send(to: str, copies: int = 1) -> str:
    return to * copies


@app.task
def add(left: int, right: int) -> int:
    return left + right


@app.task
def total(numbers: list[int], least: int = 0) -> int:
    return max(least, sum(numbers))


@app.task
def pair(parts: tuple[int, str]) -> None: ...


@app.pool("parcels", lanes=2)
async def place(number: int) -> None: ...


@app.task
async def watched(ctx: Context, name: str) -> None: ...


async def an_argument_is_missing() -> None:
    await add.enqueue(1)  # type: ignore[call-arg]


async def an_argument_has_the_wrong_type() -> None:
    await send.enqueue(to=7)  # type: ignore[arg-type]


async def an_argument_that_does_not_exist() -> None:
    await send.enqueue("ada", cc="bob")  # type: ignore[call-arg]


async def an_await_is_forgotten() -> None:
    send.enqueue("ada")  # type: ignore[unused-coroutine]


async def a_result_taken_for_something_else() -> int:
    return await send.call("ada")  # type: ignore[return-value]


async def a_handle_taken_for_the_result() -> str:
    return await send.enqueue("ada")  # type: ignore[return-value]


async def a_field_that_no_handle_has(job: JobHandle[str]) -> None:
    print(job.job_id)  # type: ignore[attr-defined]


async def the_result_of_a_handle_taken_for_something_else(job: JobHandle[str]) -> int:
    return await job.result()  # type: ignore[return-value]


async def a_handle_of_another_task(job_id: str) -> JobHandle[int]:
    return app.jobs.handle(job_id, send)  # type: ignore[arg-type]


async def a_handle_of_an_enqueue_with_another_result() -> JobHandle[str]:
    return await add.enqueue(1, 2)  # type: ignore[return-value]


async def a_state_taken_for_an_attribute_of_the_handle(job: JobHandle[str]) -> None:
    print(job.state)  # type: ignore[attr-defined]


async def an_instant_taken_for_a_number(job: JobHandle[str]) -> int:
    return (await job.status()).enqueued_at  # type: ignore[return-value]


def the_result_of_a_blocking_handle_taken_for_something_else() -> int:
    return send.sync.enqueue("ada").result()  # type: ignore[return-value]


async def a_handle_by_its_number() -> None:
    app.jobs.handle(7)  # type: ignore[call-overload]


async def a_context_of_the_callers(ctx: Context) -> None:
    await watched.enqueue(ctx, "ada")  # type: ignore[call-arg, arg-type]


async def an_option_that_does_not_exist() -> None:
    await send.options(prio=5).enqueue("ada")  # type: ignore[call-arg]


async def a_delay_that_is_no_duration() -> None:
    await send.options(delay=[10]).enqueue("ada")  # type: ignore[arg-type]


async def an_instant_in_words() -> None:
    await send.options(at="tomorrow").enqueue("ada")  # type: ignore[arg-type]


def an_exception_in_place_of_its_class() -> None:
    app.task(retry_on=ValueError("no"))  # type: ignore[call-overload]


def classes_that_are_no_exceptions() -> None:
    app.task(dont_retry_on=[int])  # type: ignore[list-item]


async def a_spec_with_a_wrong_argument_among_many() -> None:
    await send.enqueue_many([send.options(id="a").spec(7)])  # type: ignore[arg-type]


async def an_option_outside_its_choices() -> None:
    await send.options(on_hit="explode").enqueue("ada")  # type: ignore[arg-type]


async def a_wrong_argument_after_options() -> None:
    await send.options(delay=1).call(b"ada")  # type: ignore[arg-type]


def an_option_of_a_task_with_the_wrong_type() -> None:
    app.task(max_attempts="five")  # type: ignore[call-overload]


def an_option_that_only_a_job_has() -> None:
    app.task(id="seven")  # type: ignore[call-overload]


async def many_jobs_of_something_that_holds_none() -> None:
    await send.enqueue_many(["ada", "bob"])  # type: ignore[list-item]


async def tasks_in_place_of_specs() -> None:
    await app.enqueue([send])  # type: ignore[list-item]


async def a_fact_that_only_the_store_may_change(ctx: Context) -> None:
    ctx.attempt = 1  # type: ignore[misc]


async def a_method_misspelt(ctx: Context) -> None:
    ctx.progess(1)  # type: ignore[attr-defined]


async def a_child_by_its_name(ctx: Context) -> None:
    ctx.enqueue("send", "ada")  # type: ignore[arg-type]


async def a_retry_without_a_keyword() -> None:
    raise Retry("busy", 30)  # type: ignore[call-arg]


async def a_snooze_without_an_end() -> None:
    raise Snooze()  # type: ignore[call-arg]


async def a_queue_without_a_name() -> None:
    app.queue(7)  # type: ignore[arg-type]


async def a_limit_misspelt() -> None:
    await app.queue("mail").limits(max_runing=2)  # type: ignore[call-arg]


async def a_setting_outside_its_choices() -> None:
    await app.queue("mail").set(dead_overflow="drop")  # type: ignore[arg-type]


async def an_end_without_the_word_force() -> None:
    await app.queue("mail").obliterate(True)  # type: ignore[call-arg]


async def a_job_by_its_number() -> None:
    await app.jobs.cancel(7)  # type: ignore[call-overload]


async def a_record_that_may_not_be_there() -> None:
    job = await app.jobs.get("id")
    print(job.state)  # type: ignore[union-attr]


async def a_cancel_outside_its_choices(job: Job) -> None:
    await app.jobs.cancel(job, running="kill")  # type: ignore[call-overload]


async def a_search_for_what_no_job_has() -> None:
    app.jobs.find(colour="red")  # type: ignore[call-arg]


async def a_search_without_async() -> None:
    for job in app.jobs.find():  # type: ignore[attr-defined]
        del job


async def a_worker_with_many_slots() -> None:
    app.worker(slots="many")  # type: ignore[arg-type]


async def a_worker_option_with_a_slip() -> None:
    app.worker(slot=3)  # type: ignore[call-arg]


async def a_worker_with_a_function_for_its_delays() -> None:
    app.worker(retry=lambda failures: 1.0)  # type: ignore[arg-type]


def an_app_with_attempts_in_words() -> None:
    App("memory://", max_attempts="three")  # type: ignore[arg-type]


def an_event_that_does_not_exist(listener: object) -> None:
    app.on("finished")  # type: ignore[call-overload]


def a_listener_that_takes_too_much() -> None:
    def tell(event: LocalEvent, more: int) -> None: ...

    app.on("failed", tell)  # type: ignore[call-overload]


def a_store_that_is_none() -> None:
    App(42)  # type: ignore[arg-type]


async def a_rate_in_words() -> None:
    await app.limit(send, rate="fast")  # type: ignore[arg-type]


async def a_task_of_another_shape() -> None:
    async def tell(task: Task[[str], None]) -> None: ...

    await tell(add)  # type: ignore[arg-type]


def a_schedule_of_something_that_is_no_task() -> None:
    app.cron("0 3 * * *", print)  # type: ignore[call-overload]


def a_schedule_with_a_wrong_choice() -> None:
    app.cron("0 3 * * *", add, missed="some")  # type: ignore[call-overload]


def a_pool_without_lanes() -> None:
    app.pool("orders")  # type: ignore[call-arg]


async def a_job_of_a_pool_with_a_wrong_argument() -> None:
    await place.enqueue("seven")  # type: ignore[arg-type]


def a_step_that_does_not_take_the_result_of_the_step_before() -> None:
    app.chain(total.spec([1]), send)  # type: ignore[misc]


def a_step_that_takes_one_result_after_a_gather() -> None:
    app.gather([send.spec("ada")]).then(send)  # type: ignore[arg-type]


def a_step_that_takes_a_list_of_another_type() -> None:
    app.gather([send.spec("ada")]).then(total)  # type: ignore[arg-type]


def a_step_that_takes_the_results_in_another_order() -> None:
    app.gather(send.spec("ada"), add.spec(1, 2)).then(pair)  # type: ignore[arg-type]


def a_step_with_a_further_argument_that_does_not_exist() -> None:
    app.gather([add.spec(1, 2)]).then(total, most=3)  # type: ignore[call-overload]


def a_task_without_its_arguments_as_the_first_step() -> None:
    _: Flow[str] = app.chain(send, send)  # type: ignore[assignment]


def an_output_of_another_type() -> None:
    total.spec([send.spec("ada").output])  # type: ignore[list-item]


async def the_result_of_a_flow_taken_for_something_else() -> str:
    flow = await app.chain(send.spec("ada"), send.spec("bob"), total.spec([])).enqueue()
    return await flow.result()  # type: ignore[return-value]


def a_blocking_enqueue_with_a_wrong_argument() -> None:
    send.sync.enqueue(7)  # type: ignore[arg-type]


def a_blocking_call_taken_for_something_else() -> int:
    return send.sync.call("ada")  # type: ignore[return-value]


async def a_rehearsal_with_a_wrong_argument() -> None:
    await testing.run(send, 7)  # type: ignore[arg-type]


async def a_harness_told_to_look_away(mill: testing.Harness) -> None:
    await mill.drain(failures="ignore")  # type: ignore[arg-type]


def an_injected_parameter_of_another_type() -> None:
    async def session() -> AsyncIterator[list[int]]:
        yield []

    async def work(db: str = Depends(session)) -> None: ...  # type: ignore[assignment]


def a_provider_with_an_unknown_scope() -> None:
    Depends(list, scope="request")  # type: ignore[call-overload]


def a_lifespan_that_yields_nothing() -> None:
    async def nothing() -> None: ...

    app.lifespan(nothing)  # type: ignore[type-var]


def a_text_as_tags() -> None:
    send.options(tags=7)  # type: ignore[arg-type]


def a_default_of_a_queue_that_is_none() -> None:
    app.queue("mail", priority=3)  # type: ignore[call-arg]
