"""Jobs, events and the rest as plain JSON: instants in ISO 8601 (UTC), durations in seconds, states as people say them.

These shapes are what scripts read, so names in them stay; new ones may be added.
"""

from __future__ import annotations

import base64
from typing import Any

import msgspec

from millrace.domain.event import Event
from millrace.domain.job import Attempt, Job, State, word
from millrace.domain.outcome import Failure
from millrace.domain.request import LaneStatus, QueueCounts, WorkerRecord
from millrace.domain.schedule import Schedule
from millrace.domain.settings import QueueSettings
from millrace.runtime.fingerprint import fingerprint
from millrace.runtime.words import instant

Plain = dict[str, Any]


def job_plain(job: Job, now: int) -> Plain:
    """What a list shows of a job."""
    spec = job.spec
    return {
        "id": job.id,
        "task": job.task,
        "queue": job.queue,
        "state": word(job, now),
        "priority": spec.priority,
        "group": spec.group,
        "key": spec.key,
        "lane": job.lane,
        "seq": job.seq,
        "generation": job.generation,
        "attempt": job.attempt,
        "failures": job.failures,
        "max_attempts": spec.max_attempts,
        "archived": job.archived,
        "enqueued_at": when(job.enqueued_at),
        "available_at": when(job.available_at),
        "started_at": when(job.started_at),
        "finished_at": when(job.finished_at),
        "worker": job.worker,
        "lease_until": when(job.lease_until),
        "timeout": seconds(spec.timeout),
        "blocked_by": job.blocked,
        "reason": job.reason,
        "error": failure_plain(job.error),
    }


def job_whole(job: Job, now: int) -> Plain:
    """Everything that is known of a job, with its payload and result decoded."""
    spec = job.spec
    return {
        **job_plain(job, now),
        "payload": decoded(spec.payload, spec.serde),
        "result": None if job.result is None else decoded(job.result, spec.serde),
        "has_result": job.result is not None,
        "result_expired": job.result_expired,
        "progress": None if job.progress is None else decoded(job.progress, "json"),
        "serde": spec.serde,
        "headers": spec.headers or {},
        "after": list(spec.after),
        "on_dependency": spec.on_dependency,
        "stalls": job.stalls,
        "snoozes": job.snoozes,
        "releases": job.releases,
        "replays": job.replays,
        "cancel_requested": job.cancel_requested,
        "expires_at": when(job.expires_at),
        "next_retry_at": when(job.next_retry_at),
        "lease": seconds(spec.lease),
        "attempts": [attempt_plain(attempt) for attempt in job.attempts],
        "fingerprint": fingerprint(job) if job.state is State.DEAD else None,
    }


def attempt_plain(attempt: Attempt) -> Plain:
    return {
        "attempt": attempt.attempt,
        "at": when(attempt.at),
        "duration": seconds(attempt.duration),
        "worker": attempt.worker,
        "error": failure_plain(attempt.error),
    }


def failure_plain(error: Failure | None) -> Plain | None:
    return None if error is None else {"type": error.type, "message": error.message, "traceback": error.traceback}


def event_plain(event: Event) -> Plain:
    return {
        "job": event.job,
        "seq": event.seq,
        "generation": event.generation,
        "n": event.n,
        "kind": event.kind.value,
        "at": when(event.at),
        "queue": event.queue,
        "task": event.task,
        "state": event.state,
        "attempt": event.attempt,
        "failures": event.failures,
        "worker": event.worker,
        "lease": event.lease,
        "delay": seconds(event.delay),
        "duration": seconds(event.duration),
        "reason": event.reason,
        "error": failure_plain(event.error),
    }


def counts_plain(counts: QueueCounts) -> Plain:
    return {
        **{name: getattr(counts, name) for name in counts.__struct_fields__ if name != "oldest_ready"},
        "oldest_ready": seconds(counts.oldest_ready),
    }


def queue_plain(counts: QueueCounts, settings: QueueSettings, lanes: list[LaneStatus]) -> Plain:
    plain: Plain = {**counts_plain(counts), "settings": settings_plain(settings)}
    if settings.lanes is not None:
        plain["lanes"] = [{name: getattr(lane, name) for name in lane.__struct_fields__} for lane in lanes]
    return plain


IN_MILLISECONDS = ("keep_completed", "keep_dead", "auto_retry_delay")


def settings_plain(settings: QueueSettings) -> Plain:
    values = msgspec.structs.asdict(settings)
    return {name: seconds(value) if name in IN_MILLISECONDS else value for name, value in values.items()}


def worker_plain(record: WorkerRecord) -> Plain:
    info = record.info
    return {
        "id": info.id,
        "alive": record.alive,
        "host": info.host,
        "pid": info.pid,
        "version": info.version,
        "queues": list(info.queues),
        "tasks": list(info.tasks),
        "slots": info.slots,
        "shards": list(info.shards),
        "running": list(info.running),
        "completed": info.completed,
        "failed": info.failed,
        "started_at": when(record.started_at),
        "last_beat": when(record.last_beat),
        "ttl": seconds(record.ttl),
    }


def schedule_plain(schedule: Schedule) -> Plain:
    plain = msgspec.structs.asdict(schedule)
    plain |= {name: when(plain[name]) for name in ("mark", "last_tick", "next_tick")}
    return {**plain, "grace": seconds(schedule.grace)}


def decoded(data: bytes, serde: str) -> Any:
    """The data itself; what needs the app's own serde stays bytes, in base64."""
    try:
        if serde == "json":
            return msgspec.json.decode(data) if data else None
        if serde == "msgpack":
            return _jsonable(msgspec.msgpack.decode(data)) if data else None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError, ValueError):
        pass
    return {"base64": base64.b64encode(data).decode(), "serde": serde}


def _jsonable(value: Any) -> Any:
    return msgspec.to_builtins(value, str_keys=True)


def when(at: int | None) -> str | None:
    return None if at is None else instant(at)


def seconds(duration: int | None) -> float | None:
    return None if duration is None else duration / 1000
