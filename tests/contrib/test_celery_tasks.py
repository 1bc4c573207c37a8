"""Modules of Celery tasks, in the style of Celery's documentation, run by a worker of Millrace."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from uuid import UUID

import pytest

from millrace import JobFailed, PayloadInvalid
from millrace.contrib.celery import AsyncResult, Celery, GroupResult, current_app, exceptions, group
from millrace.contrib.celery.request import running
from tests.contrib.celery_modules import classes, first_steps, mailing, shared
from tests.contrib.celery_worker import PATIENCE, working
from tests.contrib.conftest import SERVERS, STORES

OnStore = Callable[[Celery], Celery]


@pytest.fixture
def steps(on_store: OnStore) -> Iterator[Celery]:
    app = on_store(first_steps.app)
    app.set_default()
    with working(app):
        yield app


@pytest.fixture
def mails(on_store: OnStore) -> Iterator[Celery]:
    mailing.tries.clear()
    app = on_store(mailing.app)
    with working(app):
        yield app


@pytest.mark.parametrize("store", [*STORES, *SERVERS], indirect=True)
def test_delay_runs_a_task_and_its_result_object_follows_it(steps):
    result = first_steps.add.delay(2, 3)

    assert isinstance(result, AsyncResult)
    assert result.get(timeout=PATIENCE) == 5
    assert (result.state, result.status) == ("SUCCESS", "SUCCESS")
    assert result.ready() and result.successful() and not result.failed()
    assert (result.result, result.name, result.retries) == (5, "tests.contrib.celery_modules.first_steps.add", 0)
    assert AsyncResult(result.id).get(timeout=PATIENCE) == 5
    assert first_steps.add.AsyncResult(result.id) == steps.AsyncResult(result.id) == result


def test_a_task_is_still_a_function(steps):
    assert first_steps.add(2, 3) == 5
    assert first_steps.mul.__doc__ == "Multiply two numbers."
    assert first_steps.add.s(2)(3) == 5


def test_arguments_are_passed_as_celery_passes_them(steps):
    values = [1, "two", None, {"three": [3.5]}, datetime(2026, 1, 2, 3, tzinfo=UTC), date(2026, 1, 2), Decimal("1.50")]
    values += [UUID(int=7), b"\x00\xff"]

    args, kwargs = first_steps.echo.delay(*values, key=values).get(timeout=PATIENCE)

    assert args == values
    assert kwargs == {"key": values}


def test_arguments_that_a_task_does_not_take_are_refused_at_the_call(steps):
    with pytest.raises(TypeError, match="missing a required argument: 'y'"):
        first_steps.add.delay(2)
    with pytest.raises(TypeError, match="too many positional arguments"):
        first_steps.add.s(1, 2, 3).delay()

    assert isinstance(first_steps.unchecked.delay(1, 2).get(timeout=PATIENCE, propagate=False), JobFailed)


def test_values_that_no_task_gets_back_are_refused_at_the_call(steps):
    with pytest.raises(PayloadInvalid, match="of type object cannot be an argument"):
        first_steps.unchecked.delay(object())


def test_a_failure_has_its_error_and_traceback(steps):
    result = first_steps.divide.delay(1, 0)

    with pytest.raises(JobFailed, match="ZeroDivisionError: division by zero"):
        result.get(timeout=PATIENCE)
    assert result.state == "FAILURE" and result.failed() and result.ready() and not result.successful()
    assert isinstance(result.result, JobFailed)
    assert "in divide" in (result.traceback or "")
    assert isinstance(result.get(propagate=False), JobFailed)


def test_options_of_the_task_and_of_the_call_reach_the_job(steps):
    eta = datetime.now(UTC) + timedelta(hours=1)
    result = first_steps.configured.apply_async(task_id="one", priority=3, eta=eta, headers={"tenant": "acme"})
    other = first_steps.configured.apply_async(countdown=60, queue="slow", expires=timedelta(hours=2), time_limit=5)

    job, its = (steps.millrace.sync.jobs.get(one.id) for one in (result, other))
    assert (job.id, job.queue, job.priority, job.state, job.headers) == (
        "one",
        "urgent",
        3,
        "scheduled",
        {"tenant": "acme"},
    )
    assert abs(job.available_at - eta) < timedelta(seconds=5)
    assert (job.record.spec.timeout, job.record.spec.on_timeout, job.record.spec.expires) == (30_000, "bury", 120_000)
    assert (its.queue, its.priority, its.record.spec.delay, its.record.spec.timeout) == ("slow", 7, 60_000, 5_000)
    assert its.record.spec.expires == 7_200_000


def test_a_task_that_acknowledges_early_does_not_run_twice(steps):
    specs = {task.name: steps.millrace.tasks[task.name].spec(args=[], kwargs={}) for task in steps.tasks.values()}

    assert specs[first_steps.add.name].max_stalls == 1
    assert specs[first_steps.configured.name].max_stalls == 3
    assert specs[first_steps.add.name].timeout is None


def test_eta_without_a_time_zone_is_in_that_of_the_app(steps):
    berlin = datetime.now(steps.timezone).replace(tzinfo=None) + timedelta(hours=1)

    job = steps.millrace.sync.jobs.get(first_steps.add.apply_async((1, 2), eta=berlin).id)

    assert abs(job.available_at - datetime.now(UTC) - timedelta(hours=1)) < timedelta(minutes=1)


def test_ignored_results_are_not_kept(steps):
    result = first_steps.say_hello.delay()

    wait_until(result.ready)
    assert result.result is None
    other = first_steps.add.apply_async((1, 2), ignore_result=True)
    assert steps.millrace.sync.jobs.get(other.id).record.spec.keep_result == 0


def test_revoke_cancels_what_waits(steps):
    result = first_steps.add.apply_async((1, 2), countdown=3600)
    result.revoke()
    steps.control.revoke([first_steps.add.apply_async((1, 2), countdown=3600, task_id="two").id])

    assert result.state == "REVOKED"
    with pytest.raises(exceptions.TaskRevokedError):
        result.get(timeout=PATIENCE)
    assert steps.AsyncResult("two").state == "REVOKED"


def test_a_job_that_expires_is_revoked(steps):
    result = first_steps.add.apply_async((1, 2), expires=datetime.now(UTC) - timedelta(hours=1))

    with pytest.raises(exceptions.TaskRevokedError):
        result.get(timeout=PATIENCE)
    assert result.state == "REVOKED"


def test_forget_deletes_the_result(steps):
    result = first_steps.add.delay(1, 2)
    result.get(timeout=PATIENCE)
    result.forget()

    assert result.state == "PENDING"
    assert result.result is None


def test_get_raises_timeout_error(steps):
    with pytest.raises(exceptions.TimeoutError):
        first_steps.add.apply_async((1, 2), countdown=3600).get(timeout=0.01)


def test_a_task_can_be_sent_by_name(steps):
    assert steps.send_task(first_steps.add.name, (20, 3)).get(timeout=PATIENCE) == 23
    unknown = steps.send_task("elsewhere.task", (1,), queue="there")

    job = steps.millrace.sync.jobs.get(unknown.id)
    assert (job.task, job.queue, job.state, job.args["args"]) == ("elsewhere.task", "there", "ready", [1])


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
def test_a_task_can_be_submitted_with_its_arguments_alone_and_in_a_transaction(steps, tmp_path):
    add, hello = (steps.millrace.tasks[name] for name in (first_steps.add.name, "first_steps.hello"))
    path = tmp_path / "jobs.db"

    assert add.sync.enqueue(args=[2, 3]).result(wait=PATIENCE) == 5
    assert hello.options(keep_result="1h").sync.enqueue(kwargs={"who": "ada"}).result(wait=PATIENCE) == "hello ada"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        job = add.options(within=connection).sync.enqueue(args=[1, 1])
        connection.execute("ROLLBACK")
    assert steps.AsyncResult(job.id).state == "PENDING"


async def test_a_call_from_a_coroutine_blocks_but_works(on_store):
    app = on_store(first_steps.app)
    async with app.millrace, app.millrace.worker():
        job = await app.millrace.jobs.handle(first_steps.add.delay(2, 3).id).result(wait=PATIENCE)

    assert job == 5


def test_shared_tasks_belong_to_the_current_app(steps):
    assert shared.count_words.delay("to be or not").get(timeout=PATIENCE) == 4
    assert shared.whoami.delay().get(timeout=PATIENCE) == ["shared.whoami", "celery"]
    assert shared.count_words("two words") == 2
    assert current_app.main == "first_steps"


# ── retries ───────────────────────────────────────────────────────────────────────────────────


def test_self_retry_runs_the_job_again_and_counts(mails):
    result = mailing.send.delay("ada", fails=2)

    assert result.get(timeout=PATIENCE) == {"id": result.id, "retries": 2, "args": ["ada"]}
    assert result.retries == 2


def test_after_the_last_retry_the_error_is_the_one_that_was_passed(mails):
    with pytest.raises(JobFailed, match="SmtpDown: try 6 for ada"):
        mailing.send.delay("ada", fails=99).get(timeout=PATIENCE)


def test_without_an_error_of_its_own_a_task_gives_up_with_max_retries_exceeded(mails):
    with pytest.raises(JobFailed, match="MaxRetriesExceededError: task '.*gives_up'"):
        mailing.gives_up.delay().get(timeout=PATIENCE)
    assert mailing.handles_the_end.delay().get(timeout=PATIENCE) == "given up"


def test_autoretry_retries_some_exceptions(mails):
    assert mailing.send_bulk.delay("ada", 2).get(timeout=PATIENCE) == 3
    with pytest.raises(JobFailed, match="try 3 for bob"):
        mailing.send_bulk.delay("bob", 9).get(timeout=PATIENCE)
    with pytest.raises(JobFailed, match="BadAddress"):
        mailing.send_to_bad.delay("eve").get(timeout=PATIENCE)

    assert mailing.tries == {"ada": 3, "bob": 3, "eve": 1}


def test_backoff_doubles_up_to_a_maximum():
    task = mailing.send_slowly

    assert [task._backoff(retries) for retries in range(11)] == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 600]


def test_a_task_that_waits_for_its_retry_is_in_the_state_retry(mails):
    mailing.tries["zoe"] = 5
    result = mailing.send_slowly.apply_async(("zoe",))

    wait_until(lambda: result.state == "RETRY")
    assert isinstance(result.result, JobFailed) and "try 6 for zoe" in str(result.result)
    result.revoke()


def test_an_ordinary_exception_is_not_retried(mails):
    result = mailing.import_contacts.delay("not a number")

    assert "TypeError" in str(result.get(timeout=PATIENCE, propagate=False))
    assert mails.millrace.sync.jobs.get(result.id).attempt == 1


def test_a_task_can_show_its_progress(mails):
    result = mailing.import_contacts.delay(3)
    assert result.get(timeout=PATIENCE) == 3
    progress = mails.millrace.sync.jobs.get(result.id).progress

    assert progress is None or progress["state"] == "PROGRESS"


def test_ignore_and_reject_end_a_task(mails):
    assert mailing.ends_early.delay("ignore").get(timeout=PATIENCE) is None
    with pytest.raises(JobFailed, match="explicit_fail"):
        mailing.ends_early.delay("reject").get(timeout=PATIENCE)


# ── classes ───────────────────────────────────────────────────────────────────────────────────


def test_base_classes_have_hooks_attributes_and_state(on_store):
    classes.log.clear()
    with working(on_store(classes.app)):
        assert classes.age_of.delay("ada").get(timeout=PATIENCE) == 36
        with pytest.raises(JobFailed):
            classes.fetch.delay("x").get(timeout=PATIENCE)
        assert classes.crawl.delay("y").get(timeout=PATIENCE) == "crawled y"

    names = [entry for entry in classes.log if entry[0] != "before"]
    assert names == [
        ("success", "36"),
        ("after", "SUCCESS"),
        ("retry", "x"),
        ("failure", "x"),
        ("after", "FAILURE"),
    ]


def test_a_base_class_can_put_a_context_around_every_run(on_store):
    classes.context.clear()
    with working(on_store(classes.app)):
        assert classes.in_context.delay().get(timeout=PATIENCE) == ["enter"]
        result = classes.in_context_with_super.delay()
        assert result.get(timeout=PATIENCE) == result.id

    assert classes.context == ["enter", "leave", "enter"]


# ── eager ─────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def eager() -> Iterator[None]:
    apps = [first_steps.app, mailing.app]
    for app in apps:
        app.conf.task_always_eager = True
    yield
    for app in apps:
        app.conf.update(task_always_eager=False, task_eager_propagates=False)


def test_eager_tasks_run_in_the_callers_process(eager):
    result = first_steps.add.delay(2, 3)

    assert (result.get(), result.state, result.ready()) == (5, "SUCCESS", True)
    failed = first_steps.divide.delay(1, 0)
    with pytest.raises(ZeroDivisionError):
        failed.get()
    assert failed.failed() and "ZeroDivisionError" in (failed.traceback or "")
    first_steps.app.conf.task_eager_propagates = True
    with pytest.raises(ZeroDivisionError):
        first_steps.divide.delay(1, 0)


def test_eager_tasks_retry_at_once(eager):
    mailing.tries.clear()

    assert mailing.send.delay("ada", fails=2).get()["retries"] == 2
    assert mailing.send_bulk.apply(("bob", 9)).failed()
    assert mailing.tries["bob"] == 3


def test_eager_results_of_a_group_are_a_group(eager):
    results = group(first_steps.add.s(number, 1) for number in range(3)).delay()

    assert isinstance(results, GroupResult)
    assert results.get() == [1, 2, 3]
    assert results.successful() and results.completed_count() == 3


def test_get_inside_a_task_is_refused(on_store):
    app = Celery("inner", broker="memory://", set_as_current=False)

    @app.task(name="inner.waits")
    def waits(disable):
        return inner.delay().get(timeout=PATIENCE, disable_sync_subtasks=disable)

    @app.task(name="inner.inner")
    def inner():
        return "inner"

    with working(on_store(app)):
        with pytest.raises(JobFailed, match="RuntimeError: Do not call result.get"):
            waits.delay(True).get(timeout=PATIENCE)
        assert waits.delay(False).get(timeout=PATIENCE) == "inner"


# ── while a task runs ─────────────────────────────────────────────────────────────────────────


def test_a_running_task_is_started_and_then_in_the_state_that_it_sets(on_store):
    app = Celery("running", broker="memory://", set_as_current=False)
    steps = [threading.Event() for _ in range(3)]

    @app.task(bind=True)
    def long(self):
        steps[0].wait(PATIENCE)
        self.update_state(state="PROGRESS", meta={"done": 1, "since": date(2026, 1, 2)})
        steps[1].wait(PATIENCE)

    with working(on_store(app)):
        result = long.delay()
        wait_until(lambda: result.state == "STARTED")
        assert list(result.info) == ["hostname"]
        steps[0].set()
        wait_until(lambda: result.state == "PROGRESS")
        assert result.info == {"done": 1, "since": date(2026, 1, 2)}
        assert (result.date_done, result.ready()) == (None, False)
        steps[1].set()
        assert result.wait(PATIENCE) is None
        assert result.date_done is not None


def test_revoke_with_terminate_asks_a_running_task_to_stop(on_store):
    app = Celery("stopping", broker="memory://", set_as_current=False)
    go = threading.Event()

    @app.task(bind=True)
    def long(self):
        current = running()
        assert current is not None and current.context is not None
        go.set()
        current.context.cancelled.wait(PATIENCE)
        current.context.check()

    with working(on_store(app)):
        result = long.delay()
        assert go.wait(PATIENCE)
        result.revoke(terminate=True)
        with pytest.raises(exceptions.TaskRevokedError):
            result.get(timeout=PATIENCE)


def test_a_task_that_takes_too_long_has_failed(on_store):
    app = Celery("late", broker="memory://", set_as_current=False)
    over = threading.Event()

    @app.task(time_limit=0.05, autoretry_for=(Exception,))
    def late():
        over.wait(PATIENCE)

    with working(on_store(app), grace=0.05):
        with pytest.raises(JobFailed, match="timeout"):
            late.delay().get(timeout=PATIENCE)
        over.set()


def test_a_result_that_no_caller_can_read_fails_the_task_and_it_is_not_repeated(on_store):
    app = Celery("bad_results", broker="memory://", set_as_current=False)

    @app.task(autoretry_for=(Exception,), retry_kwargs={"countdown": 0})
    def bad():
        return {object()}

    with working(on_store(app)):
        result = bad.delay()
        assert "result_invalid" in str(result.get(timeout=PATIENCE, propagate=False))
        assert result.retries == 0


def test_a_rejected_job_can_be_put_back(on_store):
    app = Celery("rejecting", broker="memory://", set_as_current=False)
    runs = []

    @app.task
    def picky():
        runs.append(1)
        if len(runs) == 1:
            raise exceptions.Reject("later", requeue=True)
        return len(runs)

    with working(on_store(app)):
        assert picky.delay().get(timeout=PATIENCE) == 2


def test_keys_of_dicts_are_text_as_in_celery(steps):
    assert first_steps.echo.delay({1: "a", 2.5: "b"}).get(timeout=PATIENCE)[0] == [{"1": "a", "2.5": "b"}]
    with pytest.raises(PayloadInvalid, match="cannot be a key"):
        first_steps.echo.delay({(1, 2): "a"})


def wait_until(met: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not met():
        assert time.monotonic() < deadline
        time.sleep(0.01)
