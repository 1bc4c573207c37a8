"""The floor under the SQLite store: `sqlite3` alone doing the same writes, on the same schema, with the same pragmas.

It decides nothing and checks nothing: 1,000 enqueues per commit; 100 claims per commit; 100 ends per commit. What
Millrace needs beyond this is the price of its rules, its runtime and Python.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator, Sequence
from importlib.resources import files
from itertools import islice
from pathlib import Path

from benchmarks.lab.subject import main, payloads

ENQUEUES, CLAIMS, PAGE = 1_000, 100, 256
HEAD = b"h" * 128  # what a stored spec holds beside its payload
BORN, MOVED = b"e" * 94, b"e" * 130  # what an event takes in a page of the feed: of an enqueue, of a claim or an end
LEASE, KEEP = 30_000, 3_600_000

PRAGMAS = (
    "journal_mode = WAL",
    "synchronous = FULL",
    "wal_autocheckpoint = 4000",
    "cache_size = -65536",
    "temp_store = MEMORY",
)

INSERT_JOB = """INSERT INTO millrace_job
                    (seq, id, combo, queue, generation, enqueued_at, available_at, last_event, open)
                VALUES (?, ?, 1, 1, 1, ?, ?, ?, 1)"""
INSERT_BODY = "INSERT INTO millrace_body (seq, spec) VALUES (?, ?)"
INSERT_PAGE = "INSERT INTO millrace_event (last, first, page) VALUES (?, ?, ?)"
READY = """SELECT job.seq, spec FROM millrace_job AS job CROSS JOIN millrace_body AS body ON body.seq = job.seq
           WHERE combo = 1 AND open = 1 AND available_at <= ? ORDER BY available_at, job.seq LIMIT ?"""
CLAIM = """UPDATE millrace_job SET state = 1, open = 0, attempt = 1, events = 2, last_event = ?, started_at = ?,
                          worker = 'floor', lease_id = ?, lease_until = ?
           WHERE seq = ?"""
SETTLE = """UPDATE millrace_job SET state = 2, open = 0, events = 3, last_event = ?, finished_at = ?, worker = NULL,
                           lease_id = NULL, lease_until = NULL, result_until = ?, result = ?
            WHERE seq = ?"""


class Floor:
    durability = "WAL, FULL: fsync per enqueue and end, not per claim"
    durable = True

    def __init__(self, path: Path) -> None:
        file = path / "floor.db"
        fresh = not file.exists()
        self.db = sqlite3.connect(file, isolation_level=None)
        for pragma in PRAGMAS:
            self.db.execute(f"PRAGMA {pragma}")
        if fresh:
            self.db.executescript(files("millrace.store.sqlite").joinpath("schema.sql").read_text(encoding="utf-8"))
        [(self.events,)] = self.db.execute("SELECT coalesce(max(last), 0) FROM millrace_event")

    def enqueue(self, jobs: int) -> float:
        return self._add(jobs, batch=1)

    def bulk(self, jobs: int) -> float:
        return self._add(jobs, batch=ENQUEUES)

    def process(self, jobs: int) -> float:
        began = time.perf_counter()
        done = 0
        while rows := self._claim():
            for _, spec in rows:
                noop(**json.loads(spec[len(HEAD) :]))
            self._settle([seq for seq, _ in rows])
            done += len(rows)
        assert done == jobs
        return time.perf_counter() - began

    def _add(self, jobs: int, batch: int) -> float:
        began = time.perf_counter()
        specs = enumerate((HEAD + json.dumps(payload).encode() for payload in payloads(jobs)), start=1)
        while part := list(islice(specs, batch)):
            now = time.time_ns() // 1_000_000
            self.db.execute("BEGIN IMMEDIATE")
            cursors = self._tell(len(part), BORN)
            rows = (
                (seq, f"{now:015x}-{seq:020x}", now, now, cursor)
                for (seq, _), cursor in zip(part, cursors, strict=True)
            )
            self.db.executemany(INSERT_JOB, rows)
            self.db.executemany(INSERT_BODY, part)
            self.db.execute("COMMIT")
        return time.perf_counter() - began

    def _claim(self) -> list[tuple[int, bytes]]:
        now = time.time_ns() // 1_000_000
        self.db.execute("PRAGMA synchronous = NORMAL")  # as Millrace: a claim does not wait for the disk
        self.db.execute("BEGIN IMMEDIATE")
        rows = self.db.execute(READY, (now, CLAIMS)).fetchall()
        cursors = self._tell(len(rows), MOVED)
        changes = (
            (cursor, now, f"lease-{seq:020x}", now + LEASE, seq) for (seq, _), cursor in zip(rows, cursors, strict=True)
        )
        self.db.executemany(CLAIM, changes)
        self.db.execute("COMMIT")
        return rows

    def _settle(self, seqs: Sequence[int]) -> None:
        now = time.time_ns() // 1_000_000
        self.db.execute("PRAGMA synchronous = FULL")
        self.db.execute("BEGIN IMMEDIATE")
        cursors = self._tell(len(seqs), MOVED)
        self.db.executemany(
            SETTLE, ((cursor, now, now + KEEP, b"null", seq) for seq, cursor in zip(seqs, cursors, strict=True))
        )
        self.db.execute("COMMIT")

    def _tell(self, number: int, event: bytes) -> Iterator[int]:
        """Write so many events, in pages; their cursors."""
        first, after = self.events + 1, self.events + number + 1
        for start in range(first, after, PAGE):
            end = min(start + PAGE, after)
            self.db.execute(INSERT_PAGE, (end - 1, start, event * (end - start)))
        self.events = after - 1
        return iter(range(first, after))


def noop(number: int, text: str) -> None:
    pass


if __name__ == "__main__":
    main({"floor": Floor})
