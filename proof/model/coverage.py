"""Counts what a run of the model did: a model that never buries a job proves nothing about burials."""

from __future__ import annotations

from collections import Counter, defaultdict

from millrace.domain.event import Event

NEW = "new"

ALLOWED: dict[str, frozenset[tuple[str, str]]] = {
    "enqueued": frozenset({(NEW, "waiting")}),
    "unblocked": frozenset({("waiting", "waiting")}),
    "claimed": frozenset({("waiting", "running")}),
    "reclaimed": frozenset({("running", "running")}),
    "completed": frozenset({("running", "completed")}),
    "retried": frozenset({("running", "waiting")}),
    "snoozed": frozenset({("running", "waiting")}),
    "released": frozenset({("running", "waiting")}),
    "buried": frozenset({("running", "dead"), ("waiting", "dead")}),
    "cancelled": frozenset({("running", "cancelled"), ("waiting", "cancelled")}),
    "replayed": frozenset({("completed", "waiting"), ("dead", "waiting"), ("cancelled", "waiting")}),
    "archived": frozenset({("completed", "completed"), ("dead", "dead"), ("cancelled", "cancelled")}),
    "unarchived": frozenset({("completed", "completed"), ("dead", "dead"), ("cancelled", "cancelled")}),
    "evicted": frozenset({("dead", "dead")}),
    "pruned": frozenset({("completed", "completed"), ("dead", "dead"), ("cancelled", "cancelled")}),
}
"""Which transitions there are: kind of event, and the states before and after it."""

TRANSITIONS = frozenset(f"{before} -{kind}-> {after}" for kind, pairs in ALLOWED.items() for before, after in pairs)

ANSWERS = frozenset(
    {
        *(f"enqueue: {answer}" for answer in ("queued", "duplicate by id", "duplicate by key", "completed by id")),
        *(f"enqueue: {error}" for error in ("DependencyCycle", "DuplicateKey", "QueueFull", "UnknownDependency")),
        "enqueue: DeadLettersFull",
        *(f"settle: {receipt}" for receipt in ("ok", "lost", "cancelling")),
        *(f"extend: {receipt}" for receipt in ("ok", "lost", "cancelling")),
        *(f"cancel: {a}" for a in ("cancelled", "running", "requested", "completed", "dead", "not_found")),
        *(f"replay: {a}" for a in ("replayed", "waiting", "running", "key_taken", "not_found")),
        *(f"archive: {a}" for a in ("done", "unchanged", "not_finished", "not_found")),
        *(f"delete: {a}" for a in ("deleted", "not_finished", "not_found")),
        *(f"batch: {call} and {answers}" for call in ("settle", "extend") for answers in ("ok", "lost", "lost and ok")),
        "batch: replayed into another lane",
        *(f"control: {a}" for a in ("done", "InvalidInput")),
        *(f"schedule: {a}" for a in ("ok", "stale", "early", "refused")),
    }
)

REASONS = frozenset(
    {
        *(f"buried: {reason}" for reason in ("explicit_fail", "max_attempts_exceeded", "timeout", "stalled")),
        *(f"buried: {reason}" for reason in ("worker_lost", "ttl_expired", "dependency_failed")),
        *(f"cancelled: {reason}" for reason in (None, "requested", "drained", "obliterated", "replaced")),
        *(f"pruned: {reason}" for reason in ("retention", "replaced", "obliterated", "deleted")),
        *(f"replayed: {reason}" for reason in (None, "auto_retry", "parent_replayed")),
        *(f"hook: {kind}" for kind in ("dead-letter", "empty")),
    }
)

EXPECTED = TRANSITIONS | ANSWERS | REASONS


class Coverage:
    """Counts over all examples of one machine."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def note(self, what: str) -> None:
        self.counts[what] += 1

    def transition(self, before: str, event: Event) -> None:
        self.note(f"{before} -{event.kind.value}-> {event.state}")
        if event.kind.value in ("buried", "cancelled", "pruned", "replayed"):
            self.note(f"{event.kind.value}: {event.reason}")
        if event.kind.value == "enqueued" and event.job.startswith(("dead-letter-", "empty-")):
            self.note("hook: " + ("empty" if event.job.startswith("empty-") else "dead-letter"))

    def missing(self, rules: frozenset[str], least: int = 1) -> list[str]:
        """What was expected but happened fewer than `least` times."""
        wanted = EXPECTED | {f"rule: {name}" for name in rules}
        return sorted(what for what in wanted if self.counts[what] < least)


COVERAGE: defaultdict[str, Coverage] = defaultdict(Coverage)
"""By the label of the machine, over the whole test run."""
