"""The floor under the SQLite store: `sqlite3` alone and one table, in one thread, with the pragmas of the store.

The least that a queue which keeps its jobs has to write: a row per job, a mark when it is claimed, another when it has
ended. A single enqueue waits for the disk; in bulk there is one commit. 200 jobs are claimed and 200 ended per commit;
an end waits for the disk, a claim does not. There is no history, no lease, no retry and no rule.
"""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

from benchmarks.lab.measure import Spent, Watch
from benchmarks.lab.subject import main, payloads

CLAIMS = 200
PRAGMAS = ("journal_mode = WAL", "wal_autocheckpoint = 4000", "cache_size = -65536", "temp_store = MEMORY")
SCHEMA = "CREATE TABLE IF NOT EXISTS job (seq INTEGER PRIMARY KEY, state INTEGER NOT NULL, payload BLOB, result BLOB)"
INSERT = "INSERT INTO job (state, payload) VALUES (0, ?)"
READ = "SELECT seq, payload FROM job WHERE seq > ? AND state = 0 ORDER BY seq LIMIT ?"
CLAIM = "UPDATE job SET state = 1 WHERE seq BETWEEN ? AND ? AND state = 0"
SETTLE = "UPDATE job SET state = 2, result = 'null' WHERE seq BETWEEN ? AND ?"


class Floor:
    durability = "WAL, FULL: fsync per enqueue and end, not per claim"
    durable = True

    def __init__(self, path: Path) -> None:
        self.db = sqlite3.connect(path / "floor.db", isolation_level=None)
        for pragma in PRAGMAS:
            self.db.execute(f"PRAGMA {pragma}")
        self.db.execute("PRAGMA synchronous = FULL")
        self.db.execute(SCHEMA)

    def enqueue(self, jobs: int) -> Spent:
        watch = Watch()
        for payload in payloads(jobs):
            self.db.execute(INSERT, (json.dumps(payload).encode(),))
        return watch.spent()

    def bulk(self, jobs: int) -> Spent:
        watch = Watch()
        self.db.execute("BEGIN IMMEDIATE")
        self.db.executemany(INSERT, ((json.dumps(payload).encode(),) for payload in payloads(jobs)))
        self.db.execute("COMMIT")
        return watch.spent()

    def process(self, jobs: int) -> Spent:
        watch = Watch()
        done = last = 0
        while rows := self.db.execute(READ, (last, CLAIMS)).fetchall():
            first, last = rows[0][0], rows[-1][0]
            self.db.execute("PRAGMA synchronous = NORMAL")
            self.db.execute(CLAIM, (first, last))
            for _, payload in rows:
                noop(**json.loads(payload))
            self.db.execute("PRAGMA synchronous = FULL")
            self.db.execute(SETTLE, (first, last))
            done += len(rows)
        assert done == jobs
        return watch.spent()


def noop(number: int, text: str) -> None:
    pass


if __name__ == "__main__":
    main({"floor": Floor})
