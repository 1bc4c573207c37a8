"""The backend for Django's tasks, by the tests that Django has for its own backends.

Not repeated here, because Millrace has no part in it: tests of the decorator and of the classes of Django alone (names,
pickling, order and hash of results), of the lists that the dummy backend keeps, of KeyboardInterrupt in the immediate
backend, and of backends that do not support `run_after` or results.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from django.db import connection, connections, transaction
from django.test.utils import override_settings
from django.utils import timezone

from millrace import InvalidInput
from millrace.contrib.django import MillraceBackend, get_app, options
from millrace.contrib.django.api import TaskResultDoesNotExist, TaskResultStatus, signals, task_backends
from millrace.contrib.django.app import DjangoApp, get_worker_app
from millrace.contrib.django.apps import create_tables
from millrace.contrib.django.database import database_url
from millrace.contrib.django.task_options import level_of
from tests.contrib.site import start, tasks  # in this order

BACKEND = start.BACKEND
FEW: Any = {"default": {"BACKEND": BACKEND, "QUEUES": []}}


@pytest.fixture(autouse=True)
def database(tmp_path: Path) -> Iterator[Path]:
    """Give each test a database of its own, with a table and the tables of Millrace."""
    file = tmp_path / "db.sqlite3"
    connections.close_all()
    connection.settings_dict["NAME"] = str(file)
    tasks.RUNS.clear()
    create_tables(using="default")
    app = get_app()
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE note (text text NOT NULL)")
    yield file
    app.sync.close()
    connections.close_all()


def work(alias: str = "default") -> DjangoApp:
    """Run the jobs that are due."""
    app = get_worker_app(alias)
    app.sync.run(app.worker(burst=True, poll_min=0.01).run(handle_signals=False))
    return app


class Undone(Exception): ...


@contextmanager
def rolled_back() -> Iterator[None]:
    """Run the block in a transaction, or inside one in a savepoint, and roll back."""
    with suppress(Undone), transaction.atomic():
        yield
        raise Undone


# ── enqueue ───────────────────────────────────────────────────────────────────────────────────


def test_the_backend_is_the_one_of_the_settings():
    assert isinstance(task_backends["default"], MillraceBackend)
    assert tasks.noop.get_backend() is task_backends["default"]
    assert task_backends["default"].alias == "default"


@pytest.mark.parametrize("task", [tasks.noop, tasks.noop_bare, tasks.noop_async], ids=lambda task: task.name)
def test_an_enqueued_task_is_ready(task):
    result = task.enqueue(1, two=3)

    assert (result.status, result.task, result.args, result.kwargs) == (TaskResultStatus.READY, task, [1], {"two": 3})
    assert (result.is_finished, result.attempts, result.backend) == (False, 0, "default")
    assert result.enqueued_at is not None and result.started_at is None
    with pytest.raises(ValueError, match="not finished"):
        _ = result.return_value


def test_a_task_can_be_enqueued_and_looked_up_by_async_code():
    async def enqueue_and_look() -> tuple[Any, Any]:
        result = await tasks.noop.aenqueue(1)
        found = await tasks.noop.aget_result(result.id)
        await result.arefresh()
        return result, found

    result, found = async_to_sync(enqueue_and_look)()

    assert found.status == result.status == TaskResultStatus.READY
    assert found.args == [1]


@pytest.mark.parametrize("task", [tasks.noop, tasks.noop_async], ids=lambda task: task.name)
def test_a_task_that_has_run_is_successful(task):
    result = task.enqueue(1, two=3)
    work()
    result.refresh()

    assert (result.status, result.is_finished, result.return_value) == (TaskResultStatus.SUCCESSFUL, True, None)
    assert result.enqueued_at <= result.started_at + timedelta(seconds=1)
    assert result.started_at <= result.last_attempted_at <= result.finished_at
    assert (result.attempts, len(result.worker_ids), result.errors) == (1, 1, [])
    assert result.worker_ids[0]


def test_a_return_value_is_read_back():
    result = tasks.meaning_of_life.enqueue()
    work()

    assert tasks.meaning_of_life.get_result(result.id).return_value == 42


@pytest.mark.parametrize("argument", [datetime.now(UTC), object(), {1, 2}], ids=["datetime", "object", "set"])
def test_an_argument_that_is_no_json_is_refused(argument):
    with pytest.raises(TypeError, match="Unsupported type"):
        tasks.noop.enqueue(argument)

    with pytest.raises(TypeError, match="Unsupported type"):
        async_to_sync(tasks.noop.aenqueue)(argument)


def test_a_task_is_checked_at_the_enqueue_too():
    with override_settings(TASKS=FEW):
        elsewhere = tasks.noop.using(queue_name="unknown")

    with pytest.raises(Exception, match="Queue 'unknown' is not valid for backend"):
        elsewhere.enqueue()


# ── results ───────────────────────────────────────────────────────────────────────────────────


def test_a_result_that_was_read_again_equals_the_first():
    result = tasks.noop.enqueue(1)
    found = tasks.noop.get_result(result.id)
    fields = [field.name for field in dataclasses.fields(result) if field.name != "enqueued_at"]

    assert [getattr(found, name) for name in fields] == [getattr(result, name) for name in fields]
    assert abs(found.enqueued_at - result.enqueued_at) < timedelta(seconds=5)


@pytest.mark.parametrize("unknown", ["123", "", "x" * 2_000, 123])
def test_an_unknown_result_does_not_exist(unknown):
    with pytest.raises(TaskResultDoesNotExist):
        tasks.noop.get_result(unknown)
    with pytest.raises(TaskResultDoesNotExist):
        async_to_sync(tasks.noop.aget_result)(unknown)


def test_the_result_of_another_task_is_a_mismatch():
    result = tasks.noop_async.enqueue()

    with pytest.raises(Exception, match="Task does not match"):
        tasks.noop.get_result(result.id)


def ours() -> None: ...


def test_a_job_that_is_no_task_of_django_is_no_result():
    app = get_app()
    job = app.task(name="ours")(ours).sync.enqueue()
    del app.tasks["ours"]

    with pytest.raises(TaskResultDoesNotExist):
        task_backends["default"].get_result(job.id)


@pytest.mark.parametrize(
    ("task", "path", "text"),
    [
        (tasks.fails, "builtins.ValueError", "this task failed"),
        (tasks.declines, "tests.contrib.site.tasks.Declined", "no credit\nat all"),
        (tasks.exits, "builtins.SystemExit", "this task exits"),
        (tasks.complex_exception, "builtins.ValueError", "this task failed"),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_a_task_that_raised_has_failed(task, path, text):
    result = task.enqueue()
    work()
    result.refresh()

    assert (result.status, result.is_finished, result.attempts) == (TaskResultStatus.FAILED, True, 1)
    [error] = result.errors
    assert error.exception_class_path == path
    assert issubclass(error.exception_class, BaseException)
    assert text in error.traceback
    assert result.started_at <= result.finished_at
    with pytest.raises(ValueError, match="Task failed"):
        _ = result.return_value


@pytest.mark.parametrize(
    ("task", "says"),
    [
        (tasks.complex_value, "Unsupported type: <class 'datetime.datetime'>"),
        (tasks.broken_text, "can't decode byte 0xff"),
        (tasks.pairs_as_keys, "unhashable type: 'list'"),
        (tasks.cycle, "RecursionError: maximum recursion depth"),
        (tasks.not_a_number, ""),
        (tasks.half_a_character, ""),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_a_return_value_that_is_no_json_fails_the_task_without_another_attempt(task, says):
    result = task.enqueue()
    work()
    result.refresh()

    assert (result.status, result.attempts) == (TaskResultStatus.FAILED, 1)
    if says:
        assert issubclass(result.errors[0].exception_class, TypeError)
    assert says in result.errors[0].traceback


def test_a_failed_attempt_is_repeated_and_all_errors_are_shown():
    result = tasks.flaky.enqueue(2)
    work()
    result.refresh()

    assert (result.status, result.return_value, result.attempts) == (TaskResultStatus.SUCCESSFUL, "after 3", 3)
    assert [error.exception_class for error in result.errors] == [ConnectionError, ConnectionError]


def test_a_cancelled_task_has_failed():
    result = tasks.noop.enqueue()
    get_app().sync.jobs.cancel(result.id)
    result.refresh()

    assert (result.status, result.errors) == (TaskResultStatus.FAILED, [])


def test_a_result_is_kept_as_long_as_its_job():
    result = tasks.meaning_of_life.enqueue()
    [job] = [work().sync.jobs.get(result.id)]

    assert job is not None and job.record.spec.keep_result is None


# ── what a task receives ──────────────────────────────────────────────────────────────────────


def test_a_task_receives_its_context():
    first, second = tasks.own_id.enqueue(), tasks.own_attempt.enqueue(10)
    work()

    assert task_backends["default"].get_result(first.id).return_value == first.id
    assert task_backends["default"].get_result(second.id).return_value == 11


def test_queue_priority_and_run_after_are_those_of_the_enqueue():
    due = timezone.now() + timedelta(hours=1)
    task = tasks.noop.using(queue_name="queue_1", priority=-20, run_after=due)
    result = task.enqueue()
    work()

    found = task_backends["default"].get_result(result.id)
    job = get_app().sync.jobs.get(result.id)
    assert (found.task, found.status) == (task, TaskResultStatus.READY)
    assert job is not None
    assert (job.state, job.queue, job.priority) == ("scheduled", "queue_1", level_of(-20))
    assert abs(job.available_at - due) < timedelta(seconds=60)


def test_priorities_keep_their_order():
    levels = [level_of(priority) for priority in range(-100, 101)]

    assert levels == sorted(levels)
    assert (levels[0], levels[100], levels[-1]) == (0, 7, 15)


def test_a_worker_serves_all_queues_of_the_backend():
    result = tasks.noop.using(queue_name="queue_1").enqueue()
    work()
    result.refresh()

    assert result.status == TaskResultStatus.SUCCESSFUL


def test_options_apply_to_one_task_and_defaults_to_all():
    with override_settings(TASKS={"few": {"BACKEND": BACKEND, "OPTIONS": {"defaults": {"timeout": "1m"}}}}):
        app = DjangoApp("few")
        app.register(tasks.noop)
        app.register(tasks.fails)

    assert (
        app.tasks[tasks.noop.module_path].options.timeout,
        app.tasks[tasks.noop.module_path].options.max_attempts,
    ) == (
        60_000,
        4,
    )
    assert app.tasks[tasks.fails.module_path].options.max_attempts == 1


def test_options_of_django_s_decorator_are_refused_below_it():
    with pytest.raises(InvalidInput, match=r"set queue on Django's decorator: @task\(queue_name=…\)"):
        options(queue="mail")
    with pytest.raises(InvalidInput, match="set priority on Django's decorator"):
        options(priority=5)


def test_a_job_of_a_queue_that_the_settings_no_longer_have_can_be_read():
    with override_settings(TASKS=FEW):
        result = tasks.noop.using(queue_name="former").enqueue()

    assert tasks.noop.get_result(result.id).task.queue_name == "default"


def test_a_task_can_have_a_schedule():
    app = get_app()
    app.cron("0 7 * * *", app.tasks[tasks.noop.module_path], name="daily", kwargs={"args": ["daily"], "kwargs": {}})
    try:
        app.sync.run(app.scheduler().look())
        [schedule] = app.sync.run(app.schedules.page())
    finally:
        del app.plans["daily"]

    assert (schedule.name, schedule.task) == ("daily", tasks.noop.module_path)


# ── signals ───────────────────────────────────────────────────────────────────────────────────


def test_signals_are_sent_where_a_task_is_enqueued_and_where_it_runs():
    seen: list[tuple[str, Any]] = []

    def receiver(name: str) -> Callable[..., None]:
        def receive(sender: type, task_result: Any, **_: Any) -> None:
            assert sender is MillraceBackend
            seen.append((name, task_result.status))

        return receive

    kept = {name: receiver(name) for name in ("task_enqueued", "task_started", "task_finished")}
    for name, receive in kept.items():
        getattr(signals, name).connect(receive)
    try:
        tasks.noop.enqueue()
        tasks.fails.enqueue()
        work()
    finally:
        for name, receive in kept.items():
            getattr(signals, name).disconnect(receive)

    assert sorted(seen) == sorted(
        [
            *[("task_enqueued", TaskResultStatus.READY)] * 2,
            *[("task_started", TaskResultStatus.RUNNING)] * 2,
            ("task_finished", TaskResultStatus.SUCCESSFUL),
            ("task_finished", TaskResultStatus.FAILED),
        ]
    )


def test_the_receivers_of_django_log_each_step(caplog):
    for name in ("django.tasks", "django_tasks"):
        caplog.set_level(logging.DEBUG, logger=name)
    result = tasks.noop.enqueue()
    work()

    lines = [record.getMessage() for record in caplog.records if record.name in ("django.tasks", "django_tasks")]
    assert len(lines) == 3
    assert all(result.id in line for line in lines)
    assert "enqueued" in lines[0] and "state=RUNNING" in lines[1] and "state=SUCCESSFUL" in lines[2]


# ── transactions ──────────────────────────────────────────────────────────────────────────────


def test_a_job_in_the_database_of_django_is_part_of_the_transaction():
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("INSERT INTO note VALUES ('kept')")
        kept = tasks.count_notes.enqueue()
    with rolled_back():
        with connection.cursor() as cursor:
            cursor.execute("INSERT INTO note VALUES ('lost')")
        lost = tasks.count_notes.enqueue()
    with transaction.atomic(), rolled_back():
        undone = tasks.count_notes.enqueue()
    work()
    kept.refresh()

    assert kept.return_value == 1
    for gone in (lost, undone):
        with pytest.raises(TaskResultDoesNotExist):
            tasks.count_notes.get_result(gone.id)


ELSEWHERE: Any = {"default": {"BACKEND": BACKEND, "OPTIONS": {"url": "memory://"}}}


def test_a_job_in_another_store_is_enqueued_after_the_commit():
    with override_settings(TASKS=ELSEWHERE):
        with transaction.atomic():
            result = tasks.noop.enqueue()
            with pytest.raises(TaskResultDoesNotExist):
                tasks.noop.get_result(result.id)
        with rolled_back():
            lost = tasks.noop.enqueue()
        outside = tasks.noop.enqueue()

        assert tasks.noop.get_result(result.id).status == TaskResultStatus.READY
        assert tasks.noop.get_result(outside.id).status == TaskResultStatus.READY
        with pytest.raises(TaskResultDoesNotExist):
            tasks.noop.get_result(lost.id)


def test_without_on_commit_a_job_in_another_store_is_enqueued_at_once():
    options = {"url": "memory://", "on_commit": False}
    with override_settings(TASKS={"default": {"BACKEND": BACKEND, "OPTIONS": options}}), transaction.atomic():
        result = tasks.noop.enqueue()

        assert tasks.noop.get_result(result.id).status == TaskResultStatus.READY


# ── connections ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("task", [tasks.count_notes, tasks.count_notes_async], ids=lambda task: task.name)
def test_a_worker_leaves_no_connection_open(task, monkeypatch):
    opened: list[Any] = []
    wrapper = type(connections["default"])
    connect = wrapper.get_new_connection

    def connected(self: Any, parameters: Any) -> Any:
        made = connect(self, parameters)
        if threading.current_thread() is not threading.main_thread():
            opened.append(self)
        return made

    monkeypatch.setattr(wrapper, "get_new_connection", connected)
    results = [task.enqueue() for _ in range(5)]
    work()

    assert [task.get_result(result.id).return_value for result in results] == [0] * 5
    assert opened
    assert [one.connection for one in opened] == [None] * len(opened)


# ── settings ──────────────────────────────────────────────────────────────────────────────────


def test_an_unknown_option_is_refused_by_name():
    with pytest.raises(ImproperlyConfigured, match="no option 'on_comit'. Did you mean 'on_commit'"):
        MillraceBackend("default", {"OPTIONS": {"on_comit": True}})


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"url": "reddis://localhost"}, "reddis"),
        ({"defaults": {"max_atempts": 1}, "url": "memory://"}, "max_attempts"),
    ],
    ids=["url", "defaults"],
)
def test_django_s_check_reports_settings_that_cannot_be_used(options, text):
    with override_settings(TASKS={"other": {"BACKEND": BACKEND, "OPTIONS": options}}):
        [error] = task_backends["other"].check()

    assert text in error.msg


def test_the_settings_of_the_site_pass_the_check():
    assert list(task_backends["default"].check()) == []


def test_an_in_memory_database_is_refused_with_a_way_out(monkeypatch):
    monkeypatch.setitem(connection.settings_dict, "NAME", ":memory:")

    with pytest.raises(ImproperlyConfigured, match="in-memory.*'memory://' in tests"):
        database_url("default")


def test_the_backend_of_another_kind_has_no_app():
    package = MillraceBackend.__mro__[1].__module__.partition(".backends")[0]
    dummy = {"default": {"BACKEND": f"{package}.backends.dummy.DummyBackend"}}
    with override_settings(TASKS=dummy), pytest.raises(ImproperlyConfigured, match="MillraceBackend"):
        get_app()


# ── commands ──────────────────────────────────────────────────────────────────────────────────


def test_the_management_command_passes_its_arguments_to_the_command_line(capsys):
    result = tasks.noop.enqueue()

    call_command("millrace", "worker", "--burst")
    capsys.readouterr()
    call_command("millrace", "status", result.id)
    assert "completed" in capsys.readouterr().out

    with pytest.raises(SystemExit) as left:
        call_command("millrace", "status", "unknown")
    assert left.value.code == 1


def test_async_code_cannot_block_its_event_loop():
    async def enqueue() -> None:
        tasks.noop.enqueue()

    with pytest.raises(Exception, match="await"):
        asyncio.run(enqueue())
