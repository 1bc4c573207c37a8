"""Millrace on PostgreSQL."""

from __future__ import annotations

from pathlib import Path

from benchmarks.lab.millrace_subject import MillraceSubject
from benchmarks.lab.postgres_place import url_of
from benchmarks.lab.subject import main


class Postgres(MillraceSubject):
    delivery = "at least once, under leases; results and every step kept"
    durability = "fsync per enqueue, claim and end"
    durable = True

    def __init__(self, path: Path) -> None:
        super().__init__(url_of(path))


if __name__ == "__main__":
    main({"millrace": Postgres, "before": Postgres})
