"""Exported records: which of their fields are instants, and what two stores with the same jobs have in common."""

from __future__ import annotations

import msgspec

from millrace.domain.event import Event, Kind
from millrace.domain.export import ExportedJob, ExportedPast, ExportedStore, comparable, instants_of, shifted
from millrace.domain.job import Attempt, Job, Spec, State
from millrace.domain.rules.limits import Bucket
from millrace.domain.schedule import Schedule
from millrace.domain.settings import StoreSettings
from millrace.domain.tables import KeyHold, Past, QueueRow

HOUR = 3_600_000


def test_the_names_of_fields_say_which_are_instants() -> None:
    """A new field of a job that is an instant must end in `_at` or `_until`: only then is it shifted."""
    wanted = {"enqueued_at", "available_at", "expires_at", "started_at", "finished_at", "lease_until", "result_until"}
    assert set(instants_of(Job)) == wanted | {"next_retry_at"}
    assert instants_of(Event) == instants_of(Attempt) == instants_of(Bucket) == ("at",)
    assert instants_of(Past) == ("gone_at",)
    assert instants_of(KeyHold) == ("until",)
    assert instants_of(Spec) == ()


def test_a_shift_changes_instants_and_no_durations() -> None:
    job = Job(Spec("a", "work", delay=5, window=7), 1, 1, State.WAITING, 10, 15, attempts=(Attempt(1, 12),))
    event = Event("a", 1, 1, 1, Kind.ENQUEUED, 10, "default", "work", "waiting", delay=5)
    hold = KeyHold("default", "k", "a", 1, "window", 17)
    moved = shifted(ExportedJob(job, (event,), hold=hold), HOUR)

    assert (moved.job.enqueued_at, moved.job.available_at, moved.job.expires_at) == (HOUR + 10, HOUR + 15, None)
    assert moved.job.attempts == (Attempt(1, HOUR + 12),)
    assert moved.job.spec == job.spec
    assert (moved.events[0].at, moved.events[0].delay) == (HOUR + 10, 5)
    assert moved.hold == KeyHold("default", "k", "a", 1, "window", HOUR + 17)
    assert job.enqueued_at == 10


def test_ticks_of_schedules_are_not_shifted() -> None:
    """They are instants of the calendar: a shift would repeat or skip one."""
    schedule = Schedule("nightly", "0 3 * * *", "UTC", "work", "default", "skip", 0, "digest", mark=10, next_tick=20)
    queue = QueueRow("default", bucket=Bucket(1.5, 10))
    moved = shifted(ExportedStore(StoreSettings(), (queue,), schedules=(schedule,)), HOUR)

    assert moved.schedules == (schedule,)
    assert moved.queues[0].bucket == Bucket(1.5, HOUR + 10)


def test_only_seqs_may_differ() -> None:
    job = Job(Spec("a", "work"), 1, 1, State.WAITING, 10, 10)
    event = Event("a", 1, 1, 1, Kind.ENQUEUED, 10, "default", "work", "waiting")
    other = ExportedJob(msgspec.structs.replace(job, seq=9), (msgspec.structs.replace(event, seq=9),))
    assert comparable(ExportedJob(job, (event,))) == comparable(other)
    assert comparable(ExportedJob(job)) != comparable(other)

    past = Past("a", 1, 1, State.DEAD, "token", 10)
    assert comparable(ExportedPast(past)) == comparable(ExportedPast(msgspec.structs.replace(past, seq=9)))
