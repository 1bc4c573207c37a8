"""What is asked of the engine, and what came of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from millrace.domain.job import State
from millrace.domain.ledger import Ledger
from millrace.store.object.job_table import Record
from millrace.store.object.objects import Seen

T = TypeVar("T")


class Item(Generic[T]):
    """One thing to decide. `key` is the object that says whether it was done; None for what may be done in part."""

    def __init__(self, key: str | None, decide: Callable[[Ledger, int], T]) -> None:
        self.key = key
        self.decide = decide


class Run(Generic[T]):
    """What came of an operation, after its last attempt."""

    def __init__(self, answers: list[T]) -> None:
        self.answers = answers
        self.written: set[str] = set()
        self.records: dict[str, Record] = {}
        self.settings: dict[str, Seen] = {}  # of the queues it wrote to, as they were after that
        self.ended: dict[str, tuple[State, int]] = {}  # parents: how, and their seq
        self.wasted = 0  # groups that lost a race
        self.unsure: set[str] = set()  # of them, what may have been there for a moment: an answer was lost on the way
        self.stale = 0  # index keys that said what was no longer so
