"""Exports and imports what a Redis store keeps.

The store is closed meanwhile, so that several commands read a consistent state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from millrace.domain.errors import InvalidInput
from millrace.domain.event import Event
from millrace.domain.export import Exported, ExportedHold, ExportedJob, ExportedPast, ExportedStore, ExportPage
from millrace.domain.job import Job, State, lane_line
from millrace.domain.rules import exporting
from millrace.domain.rules.importing import in_order, not_the_target, numbered_first
from millrace.domain.rules.limits import Bucket
from millrace.domain.settings import Limits, QueueSettings, StoreSettings
from millrace.domain.tables import KeyHold, Line, Past, QueueRow, TaskRow
from millrace.store.redis import control, scheduling
from millrace.store.redis.decode import RARE_FIELDS, event_from, jobs_from
from millrace.store.redis.encode import BODIES, encode, error_text, packed_specs, place_of
from millrace.store.redis.wire import RedisWire

_BEFORE_BUCKET = 13  # counters of a queue before its tokens, in the order of scripts/lib/tables.lua
_decode = msgspec.msgpack.decode


# ── export ────────────────────────────────────────────────────────────────────────────────────────


async def export(wire: RedisWire, cursor: str | None, limit: int) -> ExportPage:
    """Return a page of an export, as `export` of domain/rules/exporting.py does."""
    if cursor is None:
        return ExportPage((await _store_record(wire),), f"{exporting.PAST}:0:0")
    kind, numbers = exporting.parse(cursor)
    if kind == exporting.PAST:
        found = [_past_record(row) for row in await wire.ask("export_past", [numbers[0], limit])]
        more = len(found) >= limit
        return ExportPage(tuple(found), f"{exporting.PAST}:{numbers[0] + limit}:0" if more else f"{exporting.JOBS}:0")
    if kind == exporting.JOBS:
        rows, beside = await wire.ask("export_jobs", [numbers[0], limit])
        jobs = list(jobs_from(rows))
        records = [_job_record(job, *facts) for job, facts in zip(jobs, beside, strict=True)]
        return ExportPage(tuple(records), exporting.after_jobs(jobs, limit))
    return await _page_of_holds(wire, numbers, limit)


def _job_record(job: Job, events: list[bytes], waits_for: list[bytes], hold: Any, ended: list[int]) -> ExportedJob:
    held = None
    if hold:
        held = KeyHold(job.queue, job.spec.key or "", job.id, job.seq, hold[0].decode(), hold[1])
    parents = tuple(parent.decode() for parent in waits_for)
    return ExportedJob(job, tuple(map(event_from, events)), parents, held, (ended[0], ended[1]))


def _past_record(row: list[Any]) -> ExportedPast:
    job_id, seq, generation, state, token, gone_at, events = row
    past = Past(job_id.decode(), seq, generation, State(state.decode()), token.decode(), gone_at)
    return ExportedPast(past, tuple(map(event_from, events)))


async def _page_of_holds(wire: RedisWire, after: tuple[int, ...], limit: int) -> ExportPage:
    """Return the unique keys whose job has no record any more."""
    holds: list[KeyHold] = []
    gone: list[ExportedHold] = []
    for name, owner, seq, scope, until, is_gone in await wire.ask("export_keys", [*after, limit]):
        queue, _, key = name.decode().partition(":")
        holds.append(KeyHold(queue, key, owner.decode(), seq, scope.decode(), until))
        gone += [ExportedHold(holds[-1])] if is_gone else []
    return ExportPage(tuple(gone), exporting.after_holds(holds, after, limit))


async def _store_record(wire: RedisWire) -> ExportedStore:
    settings = await control.store(wire, {})
    of_queues = await _hash(wire, "settings")
    counted = await _hash(wire, "queue")
    rearmed = set(await wire.command("SMEMBERS", f"{wire.prefix}rearm"))
    rows = [
        _queue_row(name.decode(), counted.get(name), of_queues.get(name), name in rearmed)
        for name in sorted(of_queues.keys() | counted.keys())
        if name
    ]
    limits = await _hash(wire, "limits")
    tasks = [_task_row(name.decode(), kept, limits) for name, kept in sorted((await _hash(wire, "task")).items())]
    return exporting.complete(settings, rows, tasks, await _lanes(wire, rows), await _schedules(wire))


def _queue_row(name: str, kept: bytes | None, settings: bytes | None, rearm: bool) -> QueueRow:
    row = QueueRow(name, QueueSettings() if settings is None else control.queue_settings(settings), rearm=rearm)
    if kept is not None:
        values = _values_of(kept)
        row.processed, row.died, row.taken, row.next_lane = (int(value) for value in values[9:_BEFORE_BUCKET])
        row.bucket = _bucket(values[_BEFORE_BUCKET:])
    return row


def _task_row(name: str, kept: bytes, limits: dict[bytes, bytes]) -> TaskRow:
    values = _values_of(kept)
    found = limits.get(name.encode())
    mine = Limits() if found is None else msgspec.convert(_decode(found), Limits)
    return TaskRow(name, mine, 0, _bucket(values[1:3]))


def _bucket(values: Sequence[Any]) -> Bucket | None:
    if len(values) < 2 or values[0] is None or values[1] is None:
        return None
    return Bucket(float(values[0]), int(values[1]))


async def _lanes(wire: RedisWire, rows: Sequence[QueueRow]) -> list[Line]:
    found: list[Line] = []
    for row in rows:
        for lane in range(row.settings.lanes or 0):
            kept = await wire.command("HGET", f"{wire.prefix}line", f"{row.name}:{lane_line(lane)}")
            if kept is not None:
                _, _, processed, died, *_ = _values_of(kept)
                found.append(Line(row.name, lane_line(lane), processed=int(processed), died=int(died)))
    return found


async def _schedules(wire: RedisWire) -> list[Any]:
    kept = await _hash(wire, "schedule")
    return sorted(map(scheduling.schedule_from, kept.values()), key=lambda schedule: schedule.name)


async def _hash(wire: RedisWire, name: str) -> dict[bytes, bytes]:
    kept = await wire.command("HGETALL", f"{wire.prefix}{name}")
    return dict(zip(kept[::2], kept[1::2], strict=True))


def _values_of(packed: bytes) -> list[Any]:
    """Decode values that a script has packed one after the other, without the header of an array."""
    count = 0
    while True:
        count += 1
        try:
            return list(_decode(bytes([0x90 + count]) + packed if count < 16 else b"\xdc" + count.to_bytes(2) + packed))
        except msgspec.DecodeError as error:
            if count > 64:
                raise error


# ── import ────────────────────────────────────────────────────────────────────────────────────────


async def import_records(wire: RedisWire, records: Sequence[Exported], move: str) -> int:
    """Import records in one atomic step, after the settings and totals."""
    new = 0
    for record in records:
        if isinstance(record, ExportedStore):
            new += await _import_store(wire, record, move)
        elif isinstance(record, ExportedJob) and record.job.state is State.RUNNING:
            raise InvalidInput(f"job {record.job.id!r} runs, so it cannot be imported. Wait until it has ended.")
    numbered = numbered_first(records)
    bodies: list[bytes] = []
    items = [
        _packed_job(record, bodies) if isinstance(record, ExportedJob) else _packed_past(record.past)
        for record in numbered
    ]
    holds = [record.hold for record in records if isinstance(record, ExportedHold)]
    items += [["key", hold.queue, hold.key, hold.owner, hold.scope, hold.until] for hold in holds]
    if not items:
        return new
    events = [[event.seq, *_packed_event(event)] for event in in_order(zip(numbered, range(1, 1 << 62), strict=False))]
    return new + _counted(await wire.ask("import_records", [items, events, move], bodies, durable=True))


def _counted(answer: Any) -> int:
    if int(answer) < 0:
        raise not_the_target()
    return int(answer)


async def _import_store(wire: RedisWire, record: ExportedStore, move: str) -> int:
    settings: StoreSettings = record.settings
    closed = (await control.store(wire, {})).closed
    noted = None if closed is None else msgspec.structs.replace(closed, stage="importing")
    bodies = control.closing_bodies(noted)

    def body(value: bytes) -> int:
        bodies.append(value)
        return BODIES + len(bodies) - 1

    queues = [
        [
            *(row.name, body(control.packed_queue(row.settings)), row.processed, row.died, row.taken, row.next_lane),
            *(row.rearm, *_packed_bucket(row.bucket)),
        ]
        for row in record.queues
    ]
    tasks = [[row.name, body(encode(control.all_of(row.limits))), *_packed_bucket(row.bucket)] for row in record.tasks]
    lanes = [[line.queue, line.name, line.processed, line.died] for line in record.lanes]
    schedules = [[each.name, each.rev, each.mark, each.due_at, body(encode(each))] for each in record.schedules]
    arguments = [control.stored_keep_events(settings), queues, tasks, lanes, schedules, move]
    return _counted(await wire.ask("import_store", arguments, bodies, durable=True))


def _packed_bucket(bucket: Bucket | None) -> list[Any]:
    return [None, None] if bucket is None else [bucket.tokens, bucket.at]


def _packed_past(past: Past) -> list[Any]:
    return ["past", past.id, past.generation, past.state, past.token, past.gone_at]


def _packed_job(record: ExportedJob, bodies: list[bytes]) -> list[Any]:
    job, hold = record.job, record.hold
    [spec] = packed_specs([job.spec], bodies)
    result, log, progress = [place_of(body, bodies) for body in (job.result, job.log, job.progress)]
    attempts = [[one.attempt, one.at, error_text(one.error), one.duration, one.worker] for one in job.attempts]
    rare = {name: value for name, default in RARE_FIELDS.items() if (value := getattr(job, name)) != default}
    facts = [
        *(job.generation, job.state, job.enqueued_at, job.available_at, job.events, job.open, job.attempt),
        *(job.started_at, job.finished_at, job.result_until, result, error_text(job.error), attempts, rare, log),
        progress,
    ]
    held = None if hold is None else [hold.scope, hold.until]
    return ["job", spec, facts, record.waits_for, held, record.ended_in_line]


def _packed_event(event: Event) -> list[Any]:
    return [
        *(event.job, event.queue, event.task, event.generation, event.n, event.kind, event.at, event.state),
        *(event.attempt, event.failures, event.worker, event.lease, event.duration, event.delay, event.reason),
        error_text(event.error),
    ]
