"""What a script refuses, as the errors of the API: the same ones, with the same words, as on every other store."""

from __future__ import annotations

from typing import Any

from millrace.domain.errors import (
    DeadLettersFull,
    DependencyCycle,
    DuplicateKey,
    InvalidInput,
    LanesInUse,
    QueueError,
    QueueFull,
    UnknownDependency,
)


def refusal(reply: list[Any]) -> QueueError:
    kind = reply[0].decode()
    facts: list[Any] = [fact.decode() if isinstance(fact, bytes) else fact for fact in reply[1:]]
    match kind, facts:
        case "queue_full", [queue, depth, most, lane]:
            return QueueFull(queue, depth, most, lane)
        case "dead_letters_full", [queue, dead, cap]:
            return DeadLettersFull(queue, dead, cap)
        case "duplicate_key", [queue, key, owner]:
            return DuplicateKey(queue, key, owner)
        case "unknown_dependency", [job, parent]:
            return UnknownDependency(job, parent)
        case "cycle", path:
            return DependencyCycle(tuple(path))
        case "lanes_in_use", [queue, lanes, wanted, live]:
            return LanesInUse(queue, lanes, wanted, live)
        case "no_lane", [queue, lane, lanes]:
            return InvalidInput(f"queue {queue!r} has no lane {lane}: it has {lanes or 'no'} lanes, counted from 0")
        case _:
            raise AssertionError(f"a script refused for a reason that nobody knows: {reply!r}")
