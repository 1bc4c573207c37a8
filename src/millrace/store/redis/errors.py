"""The errors of the store: refusals by scripts, error replies of the server, and failures of the network.

A refusal has the same message in every store.
"""

from __future__ import annotations

from typing import Any

from redis.exceptions import AskError, ConnectionError, MovedError, OutOfMemoryError, ReadOnlyError, RedisError

from millrace.domain.errors import (
    DeadLettersFull,
    DependencyCycle,
    DuplicateKey,
    InvalidInput,
    LanesInUse,
    QueueError,
    QueueFull,
    StoreClosed,
    StoreError,
    UnknownDependency,
)


def refusal(reply: list[Any]) -> QueueError:
    """Return the exception for a script's refusal: `reply` is the kind of refusal, followed by its values."""
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
            raise AssertionError(f"a script refused for an unknown reason: {reply!r}")


class Unconfirmed(ConnectionError):
    """Raised if a call has taken effect but its durability is not confirmed.

    The same call can be repeated: it returns the stored reply and waits for the confirmation again.
    """


def given_up(problem: Exception, patience: float, may_have_received: bool) -> StoreError:
    """Return the error to raise after a call was retried for `patience` seconds.

    `problem` is the error of the last attempt. `may_have_received` says whether a server may have received the call.
    """
    if isinstance(problem, AskError) and not isinstance(problem, MovedError):
        return StoreError(
            f"the cluster is still moving the store's slot to another node after {patience:.0f} s, and neither "
            "node can serve it before the move ends. Finish the move (redis-cli --cluster fix), then try again"
        )
    if isinstance(problem, Unconfirmed):
        return StoreError(
            f"the server has run the call, but its durability is not confirmed: {problem}. Repeating it is safe. Check "
            "the server's disk or its replicas (INFO persistence, INFO replication)"
        )
    if isinstance(problem, ReadOnlyError) or "READONLY" in str(problem):  # the text is that of scripts before Redis 7
        return StoreError(
            "the Redis server is a read-only replica, so nothing was written. Use the master, or let sentinels find "
            "it: redis+sentinel://host:26379/mymaster"
        )
    what = f"the Redis server could not be reached within {patience:.0f} s: {type(problem).__name__}: {problem}"
    if not may_have_received:
        return StoreError(f"{what}. Check that it runs and that the URL is right")
    return StoreError(f"{what}. It is unknown whether the call took effect; repeating it is safe")


def explained(error: RedisError) -> StoreError:
    """Return a StoreError for an error reply that a retry would not change."""
    text = str(error)
    if text.startswith("CLOSED "):
        return StoreClosed(*text.split(" ", 2)[1:])
    if isinstance(error, OutOfMemoryError) or "OOM" in text:
        return StoreError(
            "the Redis server has no memory left (maxmemory), so nothing was written. Jobs can still be run and "
            "removed, which frees some; or increase maxmemory, or shorten retention"
        )
    if "MISCONF" in text:
        return StoreError(f"the Redis server cannot write to its disk, so nothing was written: {text}")
    return StoreError(f"the Redis server says: {text}")
