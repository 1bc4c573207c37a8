"""Jobs and events as the API shows them: the shapes of the command line, without what is to be hidden."""

from __future__ import annotations

import msgspec

from millrace.domain.event import Event
from millrace.domain.job import Job
from millrace.runtime.redaction import failure_without, read_plain, secrets_of
from millrace.runtime.shape import Plain, event_plain, failure_plain, job_plain, job_whole
from millrace.web.house import House


def listed(job: Job, now: int, house: House) -> Plain:
    """What a list shows. The payload is not in it, but an error may quote it."""
    plain = job_plain(job, now)
    if job.error is not None:
        plain["error"] = failure_plain(failure_without(job.error, secrets(job, house)))
    return plain


def whole(job: Job, now: int, house: House) -> Plain:
    plain = job_whole(job, now)
    plain["payload"] = value_shown(job.spec.payload, job, house)
    plain["result"] = value_shown(job.result, job, house)
    for name in ("progress", "headers"):
        plain[name] = house.redaction.plain(plain[name])
    hidden = secrets(job, house)
    plain["error"] = failure_plain(failure_without(job.error, hidden))
    for shown, attempt in zip(plain["attempts"], job.attempts, strict=True):
        shown["error"] = failure_plain(failure_without(attempt.error, hidden))
    return plain


def value_shown(data: bytes | None, job: Job, house: House) -> object:
    return house.redaction.plain(read_plain(data, job.spec.serde, house.app.serdes))


def secrets(job: Job, house: House) -> list[str] | None:
    return secrets_of(job, house.redaction, house.app.serdes)


def secrets_behind(event: Event, job: Job | None, house: House) -> list[str] | None:
    """What an event's error must not quote. The payload of a job that is gone, or was enqueued anew, is not known."""
    if not house.redaction.phrases:
        return []
    return None if job is None or job.generation != event.generation else secrets(job, house)


def shown_event(event: Event, job: Job | None, house: House) -> Plain:
    if event.error is None:
        return event_plain(event)
    error = failure_without(event.error, secrets_behind(event, job, house))
    return event_plain(msgspec.structs.replace(event, error=error))
