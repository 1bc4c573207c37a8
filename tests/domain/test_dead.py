"""Dead letters: the hook a death carries, and when a dead job comes back by itself (W-28, E-13)."""

from __future__ import annotations

import base64

import msgspec
import pytest

from millrace.domain.job import Job, State
from millrace.domain.rules.check import check_spec
from millrace.domain.rules.dead import dead_letter_hook, empty_hook, expected_hooks, expires_at, next_retry
from millrace.domain.settings import QueueSettings
from millrace.testing import a_failure, a_spec

NOW = 1_000_000


def dead(**spec: object) -> Job:
    return Job(
        a_spec(**spec), 7, 1, State.DEAD, NOW - 50, NOW, finished_at=NOW, attempt=3, failures=2, events=5,
        reason="timeout", error=a_failure("slow"), lane=4,
    )  # fmt: skip


def test_nobody_asked_nobody_is_told() -> None:
    assert dead_letter_hook(dead()) is None
    assert dead_letter_hook(dead(on_dead_letter="mourn", hook=True)) is None


def test_a_death_is_told_with_all_its_facts() -> None:
    job = dead(on_dead_letter="mourn", payload=b"\xff", queue="mail", group="g")
    hook = dead_letter_hook(job)

    assert hook is not None
    check_spec(hook)
    assert hook.id.startswith("dead-letter-mail-")
    assert hook.token == hook.id
    assert (hook.task, hook.queue, hook.hook) == ("mourn", "mail", True)
    letter = msgspec.json.decode(hook.payload)["letter"]
    assert base64.b64decode(letter.pop("payload")) == b"\xff"
    assert letter == {
        "id": job.id,
        "seq": 7,
        "queue": "mail",
        "task": "work",
        "serde": "json",
        "reason": "timeout",
        "error": "RuntimeError: slow",
        "attempts": 3,
        "failures": 2,
        "enqueued_at": NOW - 50,
        "failed_at": NOW,
        "lane": 4,
        "group": "g",
    }


def test_a_death_without_reason_error_or_time_is_told_too() -> None:
    job = dead(on_dead_letter="mourn")
    job.reason = job.error = job.finished_at = None
    hook = dead_letter_hook(job)

    assert hook is not None
    letter = msgspec.json.decode(hook.payload)["letter"]
    assert (letter["reason"], letter["error"], letter["failed_at"]) == ("unknown", "", 0)


def test_the_longest_queue_name_still_gives_a_valid_hook() -> None:
    hook = dead_letter_hook(dead(on_dead_letter="mourn", queue="q" * 128))
    assert hook is not None
    check_spec(hook)
    check_spec(empty_hook(dead(queue="q" * 128), "notify", 10**9))
    late = Job(a_spec(queue="q" * 128), 2**53, 10**6, State.DEAD, 10**14, 10**14, events=10**9)
    check_spec(empty_hook(late, "notify", 10**9))


def test_an_empty_queue_is_told_with_what_it_has_done() -> None:
    hook = empty_hook(dead(queue="mail"), "notify", 12)

    assert hook.id.startswith("empty-mail-")
    assert (hook.task, hook.queue, hook.hook) == ("notify", "mail", True)
    assert msgspec.json.decode(hook.payload) == {"queue": "mail", "lane": 4, "finished": 12}


@pytest.mark.parametrize(
    ("field", "value"),
    [("events", 6), ("generation", 2), ("enqueued_at", NOW - 49), ("spec", a_spec(id="another", queue="mail"))],
)
def test_two_events_have_hooks_with_different_ids(field: str, value: object) -> None:
    """A job can die again, its id can be used again, and the store can have forgotten that it was used."""
    job = dead(id="job", queue="mail", on_dead_letter="mourn")
    other = msgspec.structs.replace(job, **{field: value})

    assert empty_hook(job, "notify", 12).id != empty_hook(other, "notify", 12).id
    assert expected_hooks([job])[0].id != expected_hooks([msgspec.structs.replace(job, events=6)])[0].id


def test_the_id_of_a_hook_does_not_depend_on_the_seq_which_a_move_changes() -> None:
    job = dead(id="job", queue="mail")

    assert empty_hook(job, "notify", 12).id == empty_hook(msgspec.structs.replace(job, seq=99), "notify", 12).id


def test_an_expected_hook_has_the_id_of_the_hook_of_the_next_event() -> None:
    job = dead(on_dead_letter="mourn")
    [expected] = expected_hooks([msgspec.structs.replace(job, state=State.RUNNING, events=job.events - 1)])
    hook = dead_letter_hook(job)

    assert hook is not None
    assert expected.id == hook.id


@pytest.mark.parametrize(
    ("tries", "allowed", "expected"), [(0, 0, None), (0, 1, NOW + 60), (1, 1, None), (2, 1, None), (1, 2, NOW + 60)]
)
def test_a_dead_job_comes_back_so_many_times(tries: int, allowed: int, expected: int | None) -> None:
    job = dead()
    job.auto_retries = tries

    assert next_retry(job, QueueSettings(auto_retries=allowed, auto_retry_delay=60)) == expected


def test_what_has_not_finished_does_not_come_back() -> None:
    job = dead()
    job.finished_at = None

    assert next_retry(job, QueueSettings(auto_retries=5)) is None


def test_a_waiting_job_expires_and_the_record_of_a_finished_one_is_pruned() -> None:
    settings = QueueSettings(keep_completed=30, keep_dead=None)
    waiting = Job(a_spec(), 7, 1, State.WAITING, NOW, NOW, expires_at=NOW + 5)
    done = Job(a_spec(), 8, 1, State.COMPLETED, NOW, NOW, finished_at=NOW)

    assert expires_at(waiting, settings) == NOW + 5
    assert expires_at(done, settings) == NOW + 30
    assert expires_at(dead(), settings) is None
