"""Jobs and events as the API shows them: the shapes of the command line, without what is to be hidden."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import msgspec

from millrace.domain.event import Event
from millrace.domain.job import Job
from millrace.runtime.redaction import failure_without, read_plain, secrets_of
from millrace.runtime.secrets import NO_SECRETS, UNKNOWN, Secrets
from millrace.runtime.shape import Plain, event_plain, failure_plain, job_plain, job_whole
from millrace.web.house import House

T = TypeVar("T")
HEAVY = 64 << 10  # bytes to look through, about a millisecond: more of it is done beside the event loop
EVENT = 200  # bytes that an event without an error counts for


async def aside(weight: int, make: Callable[[], T]) -> T:
    """One large payload must not keep everybody else waiting."""
    return make() if weight < HEAVY else await asyncio.to_thread(make)


def listed(job: Job, now: int, house: House) -> Plain:
    """What a list shows. The payload is not in it, but an error may quote it."""
    plain = job_plain(job, now)
    if job.error is not None:
        plain["error"] = failure_plain(failure_without(job.error, secrets(job, house)))
    return plain


async def all_listed(jobs: Sequence[Job], now: int, house: House) -> list[Plain]:
    weight = sum(len(job.spec.payload) for job in jobs if job.error is not None)
    return await aside(weight, lambda: [listed(job, now, house) for job in jobs])


def whole(job: Job, now: int, house: House) -> Plain:
    hidden = secrets(job, house)
    plain = job_whole(job, now)
    plain["payload"] = house.redaction.plain(read_plain(job.spec.payload, job.spec.serde, house.app.serdes))
    plain["result"] = result_shown(job, hidden, house)
    plain["headers"] = house.redaction.plain(plain["headers"])
    plain["progress"] = hidden.within(house.redaction.plain(plain["progress"]))
    plain["error"] = failure_plain(failure_without(job.error, hidden))
    for shown, attempt in zip(plain["attempts"], job.attempts, strict=True):
        shown["error"] = failure_plain(failure_without(attempt.error, hidden))
    return plain


def weight_of(job: Job) -> int:
    return len(job.spec.payload) * (1 + len(job.attempts)) + len(job.result or b"") + len(job.progress or b"")


def result_shown(job: Job, hidden: Secrets, house: House) -> object:
    """A result may repeat what the payload hides, in a field of a harmless name."""
    return hidden.within(house.redaction.plain(read_plain(job.result, job.spec.serde, house.app.serdes)))


def secrets(job: Job, house: House) -> Secrets:
    return secrets_of(job, house.redaction, house.app.serdes)


class Witnesses:
    """The jobs that events tell of: what an error must not quote is found once for each, whatever happened to it."""

    def __init__(self, house: House, jobs: Iterable[Job | None]) -> None:
        self._house = house
        self._jobs = {job.id: job for job in jobs if job is not None}
        self._secrets: dict[str, Secrets] = {}

    def weight(self, events: Iterable[Event]) -> int:
        return sum(
            EVENT if event.error is None else len(job.spec.payload) if (job := self._jobs.get(event.job)) else EVENT
            for event in events
        )

    def secrets(self, event: Event) -> Secrets:
        """The payload of a job that is gone, or was enqueued anew, is not known."""
        if not self._house.redaction.phrases:
            return NO_SECRETS
        job = self._jobs.get(event.job)
        if job is None or job.generation != event.generation:
            return UNKNOWN
        known = self._secrets.get(job.id)
        if known is None:
            known = self._secrets[job.id] = secrets(job, self._house)
        return known

    def shown(self, event: Event) -> Plain:
        if event.error is None:
            return event_plain(event)
        return event_plain(msgspec.structs.replace(event, error=self.secrets(event).failure(event.error)))
