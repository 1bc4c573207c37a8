"""Millrace on SQLite."""

from __future__ import annotations

from pathlib import Path

from benchmarks.lab.millrace_subject import MillraceSubject
from benchmarks.lab.subject import main


class Sqlite(MillraceSubject):
    durability = "WAL, FULL: fsync per enqueue and end, not per claim; every step an event, under leases"
    durable = True

    def __init__(self, path: Path) -> None:
        super().__init__(f"sqlite:///{path / 'jobs.db'}")


if __name__ == "__main__":
    main({"millrace": Sqlite, "before": Sqlite})
