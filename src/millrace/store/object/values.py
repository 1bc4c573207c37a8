"""What the objects hold: a job with its history, a line, a unique key, settings and counters."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from millrace.domain.event import Event
from millrace.domain.job import Job
from millrace.domain.limits import Bucket
from millrace.domain.settings import QueueSettings, StoreSettings
from millrace.domain.tables import KeyHold, Line, Past, QueueRow, TaskRow
from millrace.store.object.envelope import Value, plain


class Filed(msgspec.Struct, frozen=True, gc=False):
    """An event, and its place in the feed."""

    stamp: int
    place: int
    event: Event


class JobValue(msgspec.Struct, omit_defaults=True):
    """`rev` grows with every write. `input` and `output` are payload and result as JSON, where they are JSON; else
    they stand in the job as base64, and large ones in objects of their own, named in `data`."""

    rev: int = 0
    filed: str = ""  # the index key that says where the job stands
    job: Job | None = None
    input: Value = msgspec.UNSET
    output: Value = msgspec.UNSET
    data: dict[str, str] | None = None  # "input" or "output" -> key
    parents: tuple[str, ...] = ()  # still to be waited for
    awaited: bool = False  # somebody waits for this id, or did
    past: tuple[Past, ...] = ()
    events: tuple[Filed, ...] = ()
    spilled: tuple[str, ...] = ()  # objects with earlier events of a long history

    @property
    def is_empty(self) -> bool:
        return self.job is None and not (self.past or self.awaited or self.events or self.spilled)


class LineValue(msgspec.Struct):
    """`places` names the objects of the members that the line speaks of by seq."""

    line: Line
    places: dict[int, str]
    stamp: int = 0  # of its last change: what happens in a line is told in that order
    last: int = 0  # the highest seq that has stood in it: whoever comes later has a higher one


class KeyValue(msgspec.Struct):
    hold: KeyHold
    owner: str  # the object of the owner


class QueueValue(msgspec.Struct, omit_defaults=True):
    """Settings, and what cannot be found by looking: totals of what is gone, whose turn it is.

    `row` has the counters too, if a setting needs them to be exact at every moment; then every step of this queue
    writes this object, and waits its turn for that.
    """

    name: str
    settings: QueueSettings = msgspec.field(default_factory=QueueSettings)
    completed_before: int = 0  # completions of jobs that are not completed any more: pruned or brought back
    died_before: int = 0
    next_lane: int = 0
    taken: int = 0
    bucket: Bucket | None = None
    row: QueueRow | None = None
    stamp: int = 0  # of its last change, where steps are ordered by it


class TasksValue(msgspec.Struct):
    rows: dict[str, TaskRow]


class Trimmed(msgspec.Struct, frozen=True):
    """How far the feed has been cut: the place of the last event that is gone, and how many are."""

    stamp: int = 0
    place: int = -1
    count: int = 0


class StoreValue(msgspec.Struct):
    settings: StoreSettings
    trimmed: Trimmed = Trimmed()


class NumbersValue(msgspec.Struct):
    """Writer numbers that processes have taken, and when; the highest number known to be drawn."""

    taken: dict[int, int] = {}
    high: int = 0
    shard_digits: int | None = None  # as the store was made; keys depend on it


class Trigger(msgspec.Struct, frozen=True):
    """Look at these jobs at that time; what is to be done is seen from the jobs themselves."""

    jobs: tuple[tuple[int, str], ...]  # (when, object)


class FeedPart(msgspec.Struct, frozen=True):
    events: tuple[Filed, ...]


V = TypeVar("V", bound=msgspec.Struct)
_decoders: dict[type[msgspec.Struct], msgspec.json.Decoder[msgspec.Struct]] = {}
encode = msgspec.json.Encoder().encode


def decode(body: bytes, kind: type[V]) -> V:
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.json.Decoder(kind)
    value = decoder.decode(body)
    assert isinstance(value, kind)
    return value


def needs_exact_counts(settings: QueueSettings) -> bool:
    """Do these settings decide by numbers of jobs, so that every step must count?"""
    limited = settings.max_running is not None or settings.rate is not None or settings.fair_share > 0
    counted = settings.lanes is None and (settings.max_depth is not None or settings.on_empty is not None)
    rejects = settings.dead_overflow == "reject" and settings.dead_cap is not None
    return limited or counted or rejects


def job_value(body: bytes | None, large: dict[str, bytes]) -> JobValue:
    """`large` holds the objects named in `data` that were read along."""
    if body is None:
        return JobValue()
    value = decode(body, JobValue)
    job = value.job
    if job is None:
        return value
    data = value.data or {}
    payload = large[data["input"]] if "input" in data else plain(value.input)
    if payload is not None:
        job.spec = msgspec.structs.replace(job.spec, payload=payload)
    result = large[data["output"]] if "output" in data else plain(value.output)
    if result is not None:
        job.result = result
    return value


def is_json(body: bytes) -> bool:
    """Can these bytes stand inside a JSON document and be had back as they are?"""
    try:
        body.decode()
        msgspec.json.decode(body, type=msgspec.Raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    return body != b"null" and body == body.strip()  # null would read as "not there", and spaces would get lost


def encoded_job(value: JobValue) -> bytes:
    """The payload in the clear where it is JSON: whoever opens the object can read it."""
    job = value.job
    if job is None:
        return encode(msgspec.structs.replace(value, input=msgspec.UNSET, output=msgspec.UNSET, data=None))
    data = value.data or {}
    shown = msgspec.structs.replace(job)
    payload, result = job.spec.payload, job.result
    raw_input: Value = msgspec.UNSET
    raw_output: Value = msgspec.UNSET
    if "input" in data:
        shown.spec = msgspec.structs.replace(job.spec, payload=b"")
    elif payload and job.spec.serde == "json" and is_json(payload):
        raw_input = msgspec.Raw(payload)
        shown.spec = msgspec.structs.replace(job.spec, payload=b"")
    if result is not None:
        if "output" in data:
            shown.result = None
        elif job.spec.serde == "json" and is_json(result):
            raw_output = msgspec.Raw(result)
            shown.result = None
    return encode(msgspec.structs.replace(value, job=shown, input=raw_input, output=raw_output))
