"""Jobs and events as the API shows them: the shapes of the command line, without what is to be hidden."""

from __future__ import annotations

import msgspec

from millrace.domain.event import Event
from millrace.domain.job import Job
from millrace.runtime.redaction import Redaction, failure_without
from millrace.runtime.shape import Plain, decoded, event_plain, failure_plain, job_plain, job_whole


def listed(job: Job, now: int, rule: Redaction) -> Plain:
    """What a list shows. The payload is not in it, but an error may quote it."""
    plain = job_plain(job, now)
    if job.error is not None:
        plain["error"] = failure_plain(failure_without(job.error, secrets_of(job, rule)))
    return plain


def whole(job: Job, now: int, rule: Redaction) -> Plain:
    plain = job_whole(job, now)
    secrets = secrets_of(job, rule)
    for name in ("payload", "result", "progress", "headers"):
        plain[name] = rule.plain(plain[name])
    plain["error"] = failure_plain(failure_without(job.error, secrets))
    for shown, attempt in zip(plain["attempts"], job.attempts, strict=True):
        shown["error"] = failure_plain(failure_without(attempt.error, secrets))
    return plain


def secrets_of(job: Job, rule: Redaction) -> list[str]:
    return rule.secrets(decoded(job.spec.payload, job.spec.serde), job.spec.headers or {})


def shown_event(event: Event, secrets: list[str]) -> Plain:
    error = failure_without(event.error, secrets)
    return event_plain(event if error is event.error else msgspec.structs.replace(event, error=error))
