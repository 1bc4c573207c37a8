"""Tasks: registered functions, their options, and what an enqueue makes of them."""

import functools
import inspect
from datetime import timedelta
from typing import Any, Literal

import pytest

from millrace import App, InvalidInput, PayloadInvalid, RetryPolicy, UnknownTask
from millrace.app.options import JobKeywords, TaskOptions
from millrace.domain.job import HOUR, MINUTE, SECOND, Spec, State
from millrace.store.memory.store import MemoryStore
from tests.narrowing import the


@pytest.fixture
def app():
    return App(MemoryStore())


# ── registration ──────────────────────────────────────────────────────────────────────────────


async def test_a_task_is_still_the_function_it_was_made_from(app: App):
    @app.task
    async def send(to: str) -> str:
        """Say hello."""
        return "hello " + to

    @app.task
    def add(left: int, right: int) -> int:
        return left + right

    assert await send("ada") == "hello ada"
    assert add(1, right=2) == 3
    assert (send.is_async, add.is_async) == (True, False)
    assert send.__doc__ == "Say hello."
    assert list(inspect.signature(send).parameters) == ["to"]
    assert await app.jobs.count() == []


def test_a_task_is_named_after_its_function_without_the_place_it_was_defined_in(app: App):
    class Mailer:
        @staticmethod
        def send(): ...

    def send(): ...

    assert app.task(send).name == "send"
    assert app.task(Mailer.send).name == "Mailer.send"
    assert set(app.tasks) == {"send", "Mailer.send"}


def test_a_name_that_is_taken_or_missing_is_refused(app: App):
    @app.task
    def send(): ...

    with pytest.raises(InvalidInput, match=r"'send' is already registered, for <function .*send.*another name"):
        app.task(name="send")(lambda: None)
    with pytest.raises(InvalidInput, match="has no name to store in a job"):
        app.task(lambda: None)
    with pytest.raises(InvalidInput, match="has no name to store in a job"):
        app.task(functools.partial(print))
    with pytest.raises(InvalidInput, match="task name 'a b' is not allowed"):
        app.task(name="a b")(lambda: None)
    with pytest.raises(InvalidInput, match="is already a task"):
        app.task(send)
    with pytest.raises(InvalidInput, match="must be a function"):
        app.task(name="x")(7)  # type: ignore[call-overload]


def test_an_unknown_task_is_named_with_what_was_perhaps_meant(app: App):
    @app.task
    def send_email(): ...

    assert app.find_task("send_email") is send_email
    with pytest.raises(UnknownTask, match="no task 'send_mail' is registered on this app. Did you mean 'send_email'?"):
        app.find_task("send_mail")
    with pytest.raises(UnknownTask, match="Known are: send_email."):
        app.find_task("zzz")


async def test_a_partial_is_a_handler_of_what_is_left_to_give(app: App):
    async def send(to: str, copies: int) -> str:
        return to * copies

    task = app.task(name="send_two")(functools.partial(send, copies=2))

    assert task.is_async
    assert task.load(task.spec("ada").payload, "json") == {"to": "ada"}
    with pytest.raises(PayloadInvalid, match="'to': Expected str"):
        task.spec(7)


def test_an_async_object_that_can_be_called_is_a_handler_too(app: App):
    class Sender:
        async def __call__(self, to: str) -> str:
            return to

    task = app.task(name="sender")(Sender())

    assert task.is_async
    assert task.load(task.spec("ada").payload, "json") == {"to": "ada"}


# ── options ───────────────────────────────────────────────────────────────────────────────────


def test_options_of_a_task_are_the_defaults_of_its_jobs(app: App):
    @app.task(
        queue="mail",
        priority=3,
        delay="5s",
        expires="1h",
        max_attempts=None,
        max_stalls=5,
        retry=[1, "1m", timedelta(hours=1)],
        timeout=None,
        on_timeout="bury",
        lease=10,
        keep_result=None,
        retry_blocks=False,
        on_dead_letter="cleanup",
        serde="msgpack",
    )
    def send(to: str): ...

    spec = send.spec("ada")

    assert spec == Spec(
        spec.id,
        "send",
        "mail",
        spec.payload,
        "msgpack",
        spec.token,
        priority=3,
        delay=5 * SECOND,
        expires=HOUR,
        max_attempts=None,
        max_stalls=5,
        retry=RetryPolicy(delays=(SECOND, MINUTE, HOUR)),
        timeout=None,
        on_timeout="bury",
        lease=10 * SECOND,
        keep_result=None,
        retry_blocks=False,
        on_dead_letter="cleanup",
    )
    assert (send.options.queue, send.options.lease, send.options.retry) == ("mail", 10 * SECOND, spec.retry)


def test_without_options_a_job_has_the_defaults_of_the_domain(app: App):
    @app.task
    def send(): ...

    spec = send.spec()

    assert spec == Spec(spec.id, "send", payload=b"{}", token=spec.token)


async def test_options_for_some_jobs_do_not_change_the_task(app: App):
    @app.task
    async def parent(): ...

    @app.task(queue="mail")
    async def send(to: str): ...

    first, second = await parent.enqueue(), await parent.enqueue()
    bound = send.options(
        id="mail-7",
        delay="10m",
        priority=5,
        group="ada",
        key="k",
        scope="window",
        window="1h",
        on_hit="extend",
        after=[first, second.id, the(await app.jobs.get(first))],
        on_dependency="run",
        allow_missing=True,
        expires=60,
        max_attempts=1,
        timeout=5,
        lease=6,
        queue="other",
        keep_result=0,
        wait=1,
        reuse=False,
        retry=RetryPolicy(initial=5),
        headers={"trace": "1"},
        on_dead_letter=parent,
    )
    spec = bound.spec("ada")

    assert spec == Spec(
        "mail-7",
        "send",
        "other",
        b'{"to":"ada"}',
        token=spec.token,
        priority=5,
        delay=10 * MINUTE,
        expires=MINUTE,
        group="ada",
        key="k",
        scope="window",
        window=HOUR,
        on_hit="extend",
        reuse=False,
        after=(first.id, second.id, first.id),
        on_dependency="run",
        allow_missing=True,
        max_attempts=1,
        retry=RetryPolicy(initial=5),
        timeout=5 * SECOND,
        lease=6 * SECOND,
        keep_result=0,
        on_dead_letter="parent",
        headers={"trace": "1"},
    )
    assert (bound.options.priority, bound.options.wait) == (5, 1 * SECOND)
    assert (send.options.priority, send.options.wait) == (0, 30 * SECOND)
    assert send.spec("ada").id != "mail-7"


def test_options_add_up(app: App):
    @app.task
    def send(): ...

    spec = send.options(priority=1, group="a").options(priority=2, delay=1).spec()

    assert (spec.priority, spec.group, spec.delay) == (2, "a", SECOND)


def test_one_parent_needs_no_list(app: App):
    @app.task
    def send(): ...

    assert send.options(after="parent-1", allow_missing=True).spec().after == ("parent-1",)


def test_a_backoff_of_ones_own_stays_with_the_task(app: App):
    def curve(failures: int) -> float:
        return failures * 2.0

    @app.task(retry=curve)
    def send(): ...

    assert send.options.backoff is curve
    assert send.options(priority=1).options.backoff is curve
    assert send.spec().retry == RetryPolicy()
    with pytest.raises(InvalidInput, match="a function cannot be stored with a job"):
        send.options(retry=curve)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ({"priority": 16}, "priority must be .* 0 .* 15, not 16"),
        ({"priority": "high"}, "options of task 'send': priority is invalid: Expected int, got str"),
        ({"delay": -1}, "delay must be a finite duration of at least 0, not -1"),
        ({"delay": "soon"}, "delay is not a duration: 'soon'"),
        ({"timeout": 0}, "timeout must be between 1"),
        ({"lease": None}, "lease is not a duration"),
        ({"queue": "a/b"}, "queue name 'a/b' is not allowed"),
        ({"max_attempts": 0}, "max_attempts must be a whole number of at least 1"),
        ({"scope": "forever"}, "scope is invalid: Invalid enum value 'forever'"),
        ({"key": "k", "scope": "window"}, "scope=.window. needs window"),
        ({"id": "x" * 201}, "job id must be text of 1 to 200 characters, this one has 201"),
        ({"id": ""}, "job id must be text of 1 to 200 characters"),
        ({"id": "a\0b"}, "NUL"),
        ({"id": 7}, "id is invalid: Expected str, got int"),
        ({"group": "\ud800"}, "surrogate"),
        ({"after": 7}, "after takes job ids"),
        ({"after": [None]}, "after takes job ids"),
        ({"headers": {"a": 1}}, "headers.* is invalid: Expected str, got int"),
        ({"retry": "1s"}, "retry takes backoff"),
        ({"retry": []}, "non-empty list"),
        ({"on_dead_letter": 7}, "on_dead_letter takes a task or the name of one"),
        ({"prio": 1}, "there is no option 'prio'. Did you mean 'priority'"),
        ({"colour": 1}, "there is no option 'colour'. Known are: after, allow_missing"),
        ({"serde": "json"}, "there is no option 'serde'"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_a_bad_option_is_refused_where_it_is_written(app: App, bad, says):
    @app.task
    def send(): ...

    with pytest.raises(InvalidInput, match=says):
        send.options(**bad)


def test_a_bad_option_of_a_task_is_refused_at_registration(app: App):
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"priority": -1}, "priority must be"),
        ({"timeout": float("nan")}, "timeout must be a finite duration"),
        ({"id": "x"}, "task 'send': there is no option 'id'"),
        ({"keep_result": "for ever"}, "keep_result is not a duration"),
    ]
    for bad, says in wrong:
        with pytest.raises(InvalidInput, match=says):
            app.task(name="send", **bad)(lambda: None)

    assert app.tasks == {}


def test_every_option_of_a_spec_can_be_written_by_people(app: App):
    by_itself = {"task", "payload", "serde", "token", "hook", "origin"}
    not_stored = {"wait", "within", "at"}  # `at` becomes a delay

    assert set(Spec.__struct_fields__) - by_itself == set(JobKeywords.__annotations__) - not_stored
    beside = {"backoff", "wait", "serde", "result_serde", "process"}  # the serdes of payload and result are one field
    beside |= {"retry_on", "dont_retry_on", "keep_log"}  # a worker reads them of its own task
    assert set(TaskOptions.__struct_fields__) - beside <= set(Spec.__struct_fields__)


# ── enqueue ───────────────────────────────────────────────────────────────────────────────────


async def test_an_enqueue_answers_with_the_job_that_now_waits(app: App):
    @app.task(queue="mail")
    async def send(to: str): ...

    answer = await send.enqueue("ada")
    job = the(await app.jobs.get(answer))

    assert (answer.is_duplicate, answer.enqueued.state, answer.enqueued.by) == (False, State.WAITING, None)
    assert (job.id, job.queue, job.task, job.record.payload) == (answer.id, "mail", "send", b'{"to":"ada"}')


async def test_a_duplicate_is_an_answer_and_never_an_exception(app: App):
    """R-03."""

    @app.task
    async def send(to: str): ...

    first = await send.options(id="mail-7").enqueue("ada")
    again = await send.options(id="mail-7").enqueue("ada")
    other = await send.options(id="mail-7").enqueue("bob")

    assert (first.is_duplicate, again.is_duplicate, again.enqueued.state) == (False, True, State.WAITING)
    assert (again.payload_differs, other.payload_differs) == (False, True)


async def test_asking_again_with_the_same_spec_gets_the_same_answer(app: App):
    """BW-14: a client that lost the reply may ask again."""

    @app.task
    async def send(to: str): ...

    for spec in (send.spec("ada"), send.options(id="mail-7").spec("ada")):
        [first] = await app.enqueue([spec])
        [again] = await app.enqueue([spec])

        assert first.enqueued == again.enqueued
        assert first.enqueued.status == "queued"


async def test_two_enqueues_under_one_id_carry_two_tokens(app: App):
    @app.task
    async def send(): ...

    bound = send.options(id="id")

    assert bound.spec().id == bound.spec().id == "id"
    assert bound.spec().token != bound.spec().token


async def test_a_store_that_wants_random_ids_gets_them():
    class Sharded(MemoryStore):
        ids: Literal["sorted", "random"] = "random"

    app = App(Sharded())

    @app.task
    async def send(to: str): ...

    ids = [answer.id for answer in await send.enqueue_many([{"to": "ada"}] * 200)]

    assert ids != sorted(ids)
    assert (await send.enqueue("ada")).id[14] == "4"


async def test_jobs_of_several_tasks_go_in_as_one_step(app: App):
    @app.task
    async def resize(): ...

    @app.task
    async def notify(): ...

    specs = [notify.options(id="b", after="a").spec(), resize.options(id="a").spec()]
    answers = await app.enqueue(specs)

    assert [answer.id for answer in answers] == ["b", "a"]
    assert the(await app.jobs.get("b")).record.blocked == 1


# ── enqueue_many ──────────────────────────────────────────────────────────────────────────────


async def test_many_jobs_go_in_by_name_or_by_position(app: App):
    @app.task
    async def send(to: str, copies: int = 1): ...

    answers = await send.enqueue_many([{"to": "ada"}, ("bob", 2), {"to": "eve", "copies": 3}])
    jobs = await app.jobs.get(answers)

    assert [the(job).record.payload for job in jobs] == [
        b'{"to":"ada"}',
        b'{"to":"bob","copies":2}',
        b'{"to":"eve","copies":3}',
    ]
    assert [answer.id for answer in answers] == sorted(answer.id for answer in answers)


async def test_many_jobs_go_in_by_chunks_also_from_a_generator(app: App, monkeypatch):
    sizes = []
    enqueue = app.store.enqueue

    async def counted(specs):
        sizes.append(len(specs))
        return await enqueue(specs)

    monkeypatch.setattr(app.store, "enqueue", counted)

    @app.task
    async def send(n: int): ...

    answers = await send.options(priority=1).enqueue_many({"n": n} for n in range(2_500))

    assert sizes == [2_000, 500]
    assert len({answer.id for answer in answers}) == 2_500
    assert [answer.seq for answer in answers] == sorted(answer.seq for answer in answers)
    assert await send.enqueue_many([]) == []


async def test_a_chunk_with_a_bad_item_leaves_no_trace_and_says_what_went_in_before(app: App):
    @app.task
    async def send(n: int): ...

    with pytest.raises(ValueError, match="item 3: task 'send': parameter 'n': Expected int, got str") as refused:
        await send.enqueue_many([{"n": 0}, {"n": 1}, {"n": 2}, {"n": "three"}], chunk=2)

    assert refused.value.__notes__ == ["2 jobs of this call were enqueued before the chunk that failed."]
    assert (await app.queue("default").counts()).waiting == 2


async def test_many_jobs_cannot_share_one_id_and_items_must_be_parameters(app: App):
    @app.task
    async def send(n: int): ...

    with pytest.raises(InvalidInput, match="many jobs of task .* cannot share one id"):
        await send.options(id="x").enqueue_many([{"n": 1}])
    with pytest.raises(InvalidInput, match="a tuple by position or a spec of the task, not 7"):
        await send.enqueue_many([7])  # type: ignore[list-item]
    with pytest.raises(InvalidInput, match="chunk must be at least 1"):
        await send.enqueue_many([], chunk=0)


async def test_many_jobs_are_checked_like_one(app: App):
    @app.task
    async def measure(value: float | None): ...

    with pytest.raises(ValueError, match="item 1: .*'value' is nan"):
        await measure.enqueue_many([{"value": 1.0}, {"value": float("nan")}, {"value": None}])
