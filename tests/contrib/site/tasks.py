"""The tasks of the site. A worker finds them, because the site is in INSTALLED_APPS."""

from __future__ import annotations

import datetime
from typing import Any

from django.db import connection

from millrace.contrib.django import options

try:
    from django.tasks import task
except ImportError:
    from django_tasks import task


class Declined(Exception): ...


@task()
def noop(*args: Any, **kwargs: Any) -> None: ...


@task
def noop_bare(*args: Any, **kwargs: Any) -> None: ...


@task()
async def noop_async(*args: Any, **kwargs: Any) -> None: ...


@task()
def meaning_of_life() -> int:
    return 42


@task()
@options(max_attempts=1)
def fails() -> None:
    raise ValueError("this task failed")


@task()
@options(max_attempts=1)
def declines() -> None:
    raise Declined("no credit\nat all")


@task()
@options(max_attempts=1)
def exits() -> None:
    raise SystemExit("this task exits")


@task()
@options(max_attempts=1)
def complex_exception() -> None:
    raise ValueError(ValueError("this task failed"))


@task()
def complex_value() -> Any:
    return datetime.datetime.now(datetime.UTC)


@task()
def broken_text() -> Any:
    return b"\xff\xfe"


@task()
def pairs_as_keys() -> Any:
    return {(1, 2): 3}


@task()
async def cycle() -> Any:
    values: list[Any] = []
    values.append(values)
    return values


@task()
def not_a_number() -> Any:
    return float("nan")


@task()
def half_a_character() -> Any:
    return "\ud83d"


@task()
@options(max_attempts=3, retry=[0, 0])
def flaky(fails: int) -> str:
    RUNS.append(fails)
    if len(RUNS) <= fails:
        raise ConnectionError(f"attempt {len(RUNS)}")
    return f"after {len(RUNS)}"


RUNS: list[int] = []


@task(takes_context=True)
def own_id(context: Any) -> str:
    return str(context.task_result.id)


@task(takes_context=True)
async def own_attempt(context: Any, add: int) -> int:
    return int(context.attempt) + add


@task(queue_name="queue_1", priority=50)
def count_notes() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM note")
        return int(cursor.fetchone()[0])


@task()
async def count_notes_async() -> int:
    from asgiref.sync import sync_to_async

    def count() -> int:
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM note")
            return int(cursor.fetchone()[0])

    return int(await sync_to_async(count)())


@task()
def add_note(text: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO note VALUES (%s)", [text])
