"""The values that objects contain: jobs with their history, groups and lanes, unique keys, settings and counters."""

from __future__ import annotations

from typing import TypeAlias, TypeVar

import msgspec

from millrace.domain.event import Event
from millrace.domain.job import Job
from millrace.domain.rules.limits import Bucket
from millrace.domain.settings import Closing, QueueSettings, StoreSettings
from millrace.domain.tables import KeyHold, Line, Past, QueueRow, TaskRow
from millrace.store.object.driver import Blob
from millrace.store.object.engine.objects import SeenObject, Value, value_bytes

Identity: TypeAlias = tuple[int, int, int, int]  # of an event in the feed: stamp, place, seq, n


class FeedEvent(msgspec.Struct, frozen=True, gc=False):
    """An event and its position in the feed: the stamp of its operation, and its place within the operation."""

    stamp: int
    place: int
    event: Event

    @property
    def position(self) -> tuple[int, int]:
        return self.stamp, self.place

    @property
    def identity(self) -> Identity:
        return self.stamp, self.place, self.event.seq, self.event.n


LARGE_PARTS = frozenset({"input", "output"})  # what a job may keep in objects of its own: its payload, its result


class JobValue(msgspec.Struct, omit_defaults=True):
    """A job. `rev` grows with every write.

    `input` and `output` are the payload and the result, if they are JSON. Otherwise they are in `job`, as base64. If
    they are large, they have their own objects, and `data` has the keys of these objects.
    """

    rev: int = 0
    index_key: str = msgspec.field(default="", name="filed")  # the job's current one
    job: Job | None = None
    input: Value = msgspec.UNSET
    output: Value = msgspec.UNSET
    data: dict[str, str] | None = None  # "input" or "output" -> key
    parents: tuple[str, ...] = ()  # parents that have not completed yet
    awaited: bool = False  # other jobs wait or waited for this id
    recalls: bool = False  # it was replayed, and its dead dependents must be too; the sweep completes that
    past: tuple[Past, ...] = ()
    events: tuple[FeedEvent, ...] = ()
    spilled: tuple[str, ...] = ()  # objects with the earlier events of a long history

    @property
    def is_empty(self) -> bool:
        return self.job is None and not (self.past or self.awaited or self.events or self.spilled)


class Member(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A job that waits in a line. `key` is the key of its object."""

    priority: int
    seq: int
    key: str

    @property
    def order(self) -> tuple[int, int]:
        return -self.priority, self.seq


class Head(msgspec.Struct, frozen=True, omit_defaults=True):
    """The first members of a line that are not open, in order.

    No member that comes before the last of these is missing. If the head is `whole`, no member is missing. A member may
    have left the line; its record shows this.
    """

    members: tuple[Member, ...] = ()
    whole: bool = False


class LineValue(msgspec.Struct, omit_defaults=True):
    """A group or lane. It refers to its members by seq; `places` maps these seqs to the keys of the jobs' objects."""

    line: Line
    places: dict[int, str]
    stamp: int = 0  # stamp of the last change; events of a line are in this order
    last: int = 0  # the highest seq so far; later members have a higher one
    head: Head = Head()


class KeyValue(msgspec.Struct):
    hold: KeyHold
    owner: str  # key of the owner's object


class QueueValue(msgspec.Struct, omit_defaults=True):
    """A queue: its settings, and numbers that cannot be found by listing, such as totals of removed jobs.

    If a setting needs exact counts, `row` also has the counters, and then every step of this queue writes this object.
    """

    name: str
    settings: QueueSettings = msgspec.field(default_factory=QueueSettings)
    completed_before: int = 0  # completions of jobs that were pruned or replayed since
    died_before: int = 0
    next_lane: int = 0
    taken: int = 0
    bucket: Bucket | None = None
    row: QueueRow | None = None
    stamp: int = 0  # stamp of the last change, if steps are ordered by it
    rearm: bool = False  # auto-retry must include jobs that died before it was enabled
    closed: Closing | None = None  # why the store is closed, see closing.py


class TasksValue(msgspec.Struct):
    rows: dict[str, TaskRow] = {}


class Trimmed(msgspec.Struct, frozen=True):
    """How far the feed has been trimmed: the position of the last removed event, and the number of removed events."""

    stamp: int = 0
    place: int = -1
    count: int = 0

    @property
    def position(self) -> tuple[int, int]:
        return self.stamp, self.place


class StoreValue(msgspec.Struct):
    settings: StoreSettings = StoreSettings()
    trimmed: Trimmed = Trimmed()


class WriterValue(msgspec.Struct, frozen=True):
    """The reservation of a writer number. Its owner draws only numbers before the time `until`, in milliseconds.

    `free` means that it has no owner.
    """

    until: int
    free: bool = False


class LayoutValue(msgspec.Struct, frozen=True):
    """The number of shard digits with which the store was created. Keys depend on it, so it never changes."""

    shard_digits: int


class Trigger(msgspec.Struct, frozen=True):
    """A reminder to check these jobs at a given time. What happens at that time depends on the state of each job."""

    jobs: tuple[tuple[int, str], ...]  # (time, object)


class FeedPart(msgspec.Struct, frozen=True):
    events: tuple[FeedEvent, ...]


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


def events_in(part: Blob | None) -> tuple[FeedEvent, ...]:
    """Return the events of a feed part; an empty tuple if the part was deleted."""
    return () if part is None else decode(part.body, FeedPart).events


def value_of(seen: SeenObject, kind: type[V]) -> V | None:
    """Decode the value of an object that was read; None if the object has no value."""
    return None if seen.value is None else decode(seen.value, kind)


def needs_exact_counts(settings: QueueSettings) -> bool:
    """Return whether these settings depend on counts of jobs, so that every step must count."""
    limited = settings.max_running is not None or settings.rate is not None or settings.fair_share > 0
    counted = settings.lanes is None and (settings.max_depth is not None or settings.on_empty is not None)
    return limited or counted or settings.dead_limit is not None


def job_value(body: bytes | None, large: dict[str, bytes], parts: frozenset[str] = LARGE_PARTS) -> JobValue:
    """Decode a job. `large` contains the bodies of the objects named in its `data`, by key. Those that are not in
    `parts` are left out.
    """
    if body is None:
        return JobValue()
    value = decode(body, JobValue)
    job = value.job
    if job is None:
        return value
    data = {part: key for part, key in (value.data or {}).items() if part in parts}
    payload = large[data["input"]] if "input" in data else value_bytes(value.input)
    if payload is not None:
        job.spec = msgspec.structs.replace(job.spec, payload=payload)
    result = large[data["output"]] if "output" in data else value_bytes(value.output)
    if result is not None:
        job.result = result
    return value


def is_json(body: bytes) -> bool:
    """Return whether these bytes can be embedded in a JSON document and read back unchanged."""
    try:
        body.decode()
        msgspec.json.decode(body, type=msgspec.Raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    return body != b"null" and body == body.strip()  # null would read as missing, and spaces would be lost


def encoded_job(value: JobValue) -> bytes:
    """Encode a job. A JSON payload or result is stored as JSON, so that people can read the object."""
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
    elif payload and job.spec.payload_serde == "json" and is_json(payload):
        raw_input = msgspec.Raw(payload)
        shown.spec = msgspec.structs.replace(job.spec, payload=b"")
    if result is not None:
        if "output" in data:
            shown.result = None
        elif job.spec.result_serde == "json" and is_json(result):
            raw_output = msgspec.Raw(result)
            shown.result = None
    return encode(msgspec.structs.replace(value, job=shown, input=raw_input, output=raw_output))
