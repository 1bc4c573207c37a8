"""Compacted jobs as Parquet: the columns of the tables `jobs` and `dead`, the history, and the whole record.

The column `record` is the job as the store kept it, without payload and result, which have their own columns. Columns
that are added to the tables later are computed from the record.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from millrace.domain.job import Job
from millrace.spark.columns import event_arrays, job_arrays
from millrace.spark.schema import DEAD, EVENTS, JOBS
from millrace.spark.table import Column, Table, arrow_type
from millrace.store.archived import ArchiveFile, Compactable

LARGEST = 32 << 20  # bytes; a file is written in one go, so it must fit into a task's memory
_OF_DEAD = tuple(column for column in DEAD.columns if column.name in ("fingerprint", "attempts"))
_EVENT = ", ".join(f"{column.name}: {column.type}" for column in EVENTS.columns)
HISTORY = Column("history", f"array<struct<{_EVENT}>>", "its events, as in the table `events`")
RECORD = Column("record", "binary", "the job as the store kept it, in JSON, without payload and result")
PART = Column("part", "string", "the file that the job was first written into")
ARCHIVE = Table(
    "archive",
    "the files of compacted jobs",
    (*JOBS.columns, *(column for column in _OF_DEAD if column.name not in JOBS.names), HISTORY, RECORD, PART),
)
_OTHER_NAMES = {"died_at": "finished_at"}
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Job).decode


class FileWriter:
    """Builds one Parquet file in memory."""

    def __init__(self, part: str) -> None:
        self.part = part
        self.rows = 0
        self._sink = pa.BufferOutputStream()
        self._writer = pq.ParquetWriter(self._sink, ARCHIVE.arrow(), compression="zstd")
        self._finished: list[int] = []
        self._queues: dict[str, None] = {}

    @property
    def size(self) -> int:
        return int(self._sink.tell())

    def add(self, jobs: Sequence[Compactable]) -> None:
        """Add the jobs as one row group."""
        if not jobs:
            return
        self._writer.write_batch(_batch(jobs, self.part))
        self.rows += len(jobs)
        self._finished += [one.job.finished_at or 0 for one in jobs]
        self._queues.update(dict.fromkeys(one.job.queue for one in jobs))

    def close(self) -> bytes:
        self._writer.close()
        return bytes(self._sink.getvalue())

    def described(self, key: str, size: int) -> ArchiveFile:
        first, last = min(self._finished), max(self._finished)
        return ArchiveFile(key, (self.part,), self.rows, size, first, last, tuple(sorted(self._queues)), open=True)


def _batch(jobs: Sequence[Compactable], part: str) -> pa.RecordBatch:
    made = [one.job for one in jobs]
    plain = [column for column in ARCHIVE.columns if column not in (HISTORY, RECORD, PART)]
    arrays = job_arrays(plain, made)
    arrays.append(_histories(jobs))
    arrays.append(pa.array([_encode(_bare(job)) for job in made], pa.binary()))
    arrays.append(pa.array([part] * len(jobs), pa.string()))
    return pa.RecordBatch.from_arrays(arrays, schema=ARCHIVE.arrow())


def _histories(jobs: Sequence[Compactable]) -> pa.Array:
    events = [event for one in jobs for event in one.history]
    offsets = [0]
    for one in jobs:
        offsets.append(offsets[-1] + len(one.history))
    kind = arrow_type(HISTORY.type)
    fields = [kind.value_type.field(at) for at in range(kind.value_type.num_fields)]
    structs = pa.StructArray.from_arrays(event_arrays(EVENTS.columns, events), fields=fields)
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), structs, type=kind)


def _bare(job: Job) -> Job:
    spec = msgspec.structs.replace(job.spec, payload=b"")
    return msgspec.structs.replace(job, spec=spec, result=None)


def jobs_in(table: pa.Table | pa.RecordBatch) -> list[Job]:
    """Return the jobs, rebuilt from the columns `record`, `payload` and `result`."""
    found: list[Job] = []
    for row in table.select(["record", "payload", "result"]).to_pylist():
        job = _decode(row["record"])
        job.spec = msgspec.structs.replace(job.spec, payload=row["payload"])
        job.result = row["result"]
        found.append(job)
    return found


def columns_of(body: bytes, names: Sequence[str], rows: int = 10_000) -> Iterator[pa.RecordBatch]:
    """Yield these columns of a file, `rows` at a time, under their names in the tables `jobs` and `dead`."""
    file = pq.ParquetFile(pa.BufferReader(body))
    there = set(file.schema_arrow.names)
    stored = {name: _OTHER_NAMES.get(name, name) for name in names}
    younger = [name for name in names if stored[name] not in there]
    read = [*dict.fromkeys(at for at in stored.values() if at in there)]
    read += [name for name in ("record", "payload", "result") if younger and name not in read]
    for batch in file.iter_batches(batch_size=rows, columns=read):
        made = _younger(younger, batch)
        if HISTORY.name in names:
            made[HISTORY.name] = _with_all_fields(batch.column(HISTORY.name))
        arrays = [made[name] if name in made else batch.column(stored[name]) for name in names]
        yield pa.RecordBatch.from_arrays(arrays, names=list(names))


def _younger(names: Sequence[str], batch: pa.RecordBatch) -> dict[str, Any]:
    """Return the columns that the file does not have, because they were added to the tables later. They are computed
    from the records in the file.
    """
    if not names:
        return {}
    known = {column.name: column for column in (*JOBS.columns, *DEAD.columns)}
    columns = [known[name] for name in names]
    return dict(zip(names, job_arrays(columns, jobs_in(batch)), strict=True))


def _with_all_fields(histories: Any) -> pa.Array:
    """Return the histories with the current fields of an event. Fields that older files do not have are null."""
    kind = arrow_type(HISTORY.type)
    if histories.type == kind:
        return histories
    events = histories.values
    there = {field.name for field in events.type}
    fields = [kind.value_type.field(at) for at in range(kind.value_type.num_fields)]
    arrays = [
        events.field(one.name).cast(one.type) if one.name in there else pa.nulls(len(events), one.type)
        for one in fields
    ]
    structs = pa.StructArray.from_arrays(arrays, fields=fields)
    return pa.ListArray.from_arrays(histories.offsets, structs, type=kind)


def events_in(histories: pa.Array) -> pa.RecordBatch:
    """Return the events of these histories, with the columns of the table `events`."""
    structs = histories.flatten()
    return pa.RecordBatch.from_arrays([structs.field(name) for name in EVENTS.names], schema=EVENTS.arrow())
