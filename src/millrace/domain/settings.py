"""Settings of queues, tasks and the store. They are durable, shared by all workers, and changed by `Store.control`.

`updated` applies changes to settings and refuses invalid ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, TypeVar

import msgspec

from millrace.domain.errors import InvalidInput, StoreError, did_you_mean
from millrace.domain.job import DAY, MINUTE, State
from millrace.domain.rules.check import MAX_DURATION, check_name


class Limits(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Limits on the claims of a task or a queue. They apply to all workers together."""

    max_running: int | None = None
    rate: float | None = None  # tokens per second
    burst: int | None = None  # bucket size; default: the tokens of one second, at least 1


class QueueSettings(Limits, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The settings of a queue. A pool is a queue with lanes."""

    paused: bool = False
    paused_lanes: tuple[int, ...] = ()
    lanes: int | None = None
    max_depth: int | None = None  # limit of waiting jobs; with lanes, per lane
    fair_share: float = 0.0
    on_empty: str | None = None  # task enqueued when the last live job of the queue (or lane) has finished
    keep_completed: int | None = DAY  # also for cancelled jobs; 0 deletes at once, None keeps them forever
    keep_dead: int | None = 7 * DAY
    dead_cap: int | None = 10_000
    dead_overflow: Literal["evict", "archive", "reject"] = "evict"
    auto_retries: int = 0
    auto_retry_delay: int = 60 * MINUTE

    def keep(self, state: State) -> int | None:
        """Return how many milliseconds the record of a job that ended in this state is kept; None means forever."""
        return self.keep_dead if state is State.DEAD else self.keep_completed

    @property
    def dead_limit(self) -> int | None:
        """The number of dead jobs at which the queue refuses new jobs; None if it has no such limit."""
        return self.dead_cap if self.dead_overflow == "reject" else None


class Closing(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Why a store is closed: its jobs are moved to or from another store (store/transfer.py).

    A closed store refuses every change. It refuses none in the stages "draining" (all its queues are paused, and
    running jobs end), "aborting" (its queues are resumed) and "opened" (a complete target). `paused` has the queues of
    the source that were paused before. `shift` is added to every instant, because the clocks of the stores differ.
    `cursor` is how far the target has imported.
    """

    move: str  # identifies the move: a target that another move began is refused
    role: Literal["source", "target"]
    stage: Literal["draining", "frozen", "moved", "aborting", "empty", "importing", "opened"]
    peer: str  # the URL of the other store, without its password
    paused: tuple[str, ...] = ()
    shift: int = 0
    cursor: str | None = None

    @property
    def refuses(self) -> bool:
        """Whether the store refuses changes."""
        return self.stage not in ("draining", "aborting", "opened")


class StoreSettings(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Settings of the whole store. A store has one feed, so the retention of events is not set per queue."""

    keep_events: int | None = 7 * DAY
    closed: Closing | None = None  # only `millrace move` sets it


SLOWEST_RATE = 1e-6  # one job in twelve days; below, the time of the next token would not fit a store's integers
S = TypeVar("S", Limits, QueueSettings, StoreSettings)

_AT_LEAST: dict[str, int] = {
    "max_running": 0,
    "burst": 1,
    "lanes": 1,
    "max_depth": 0,
    "keep_completed": 0,
    "keep_dead": 0,
    "keep_events": 0,
    "dead_cap": 0,
    "auto_retries": 0,
    "auto_retry_delay": 0,
}


def updated(current: S, changes: Mapping[str, Any]) -> S:
    """Return `current` with `changes` applied. Raises InvalidInput if a setting is unknown or its value is invalid.

    The changes `pause_lane` and `resume_lane` add or remove one lane of `paused_lanes`. So two operators who pause
    different lanes at the same time do not undo each other's change. With `closed_was`, `closed` is changed only if it
    still has that value, so that two commands that move or abort do not overwrite each other's stage.
    """
    changes = _with_stage(current, _with_lane(current, changes))
    unknown = set(changes) - set(current.__struct_fields__)
    if unknown:
        raise InvalidInput(f"unknown setting {min(unknown)!r}. {did_you_mean(min(unknown), current.__struct_fields__)}")
    merged = {name: changes.get(name, getattr(current, name)) for name in current.__struct_fields__}
    try:
        new = msgspec.convert(merged, type(current))
    except msgspec.ValidationError as error:
        raise InvalidInput(f"bad setting: {error}") from None
    for name, floor in _AT_LEAST.items():
        value = merged.get(name)
        if value is not None and not floor <= value <= MAX_DURATION:
            raise InvalidInput(f"{name} must be between {floor} and {MAX_DURATION}, not {value!r}")
    rate = changes.get("rate")
    if rate is not None and not (math.isfinite(rate) and rate >= SLOWEST_RATE):
        raise InvalidInput(
            f"rate must be a finite number of jobs per second, at least {SLOWEST_RATE:f}, not {rate!r}. "
            "To stop a queue, pause it."
        )
    share = merged.get("fair_share", 0.0)
    if not 0.0 <= share <= 1.0:
        raise InvalidInput(f"fair_share must be between 0 and 1, not {share!r}")
    if isinstance(new, QueueSettings):
        _check_lanes(new)
        if new.on_empty is not None:
            check_name("task", new.on_empty)
    return new


def _with_lane(current: object, changes: Mapping[str, Any]) -> Mapping[str, Any]:
    if not isinstance(current, QueueSettings) or not changes.keys() & {"pause_lane", "resume_lane"}:
        return changes
    rest = dict(changes)
    lanes = set(rest.get("paused_lanes", current.paused_lanes))
    if "pause_lane" in rest:
        lanes.add(rest.pop("pause_lane"))
    if "resume_lane" in rest:
        lanes.discard(rest.pop("resume_lane"))
    return {**rest, "paused_lanes": tuple(sorted(lanes))}


def _with_stage(current: object, changes: Mapping[str, Any]) -> Mapping[str, Any]:
    if not isinstance(current, StoreSettings) or "closed_was" not in changes:
        return changes
    rest = dict(changes)
    seen = [msgspec.convert(value, Closing | None) for value in (rest.pop("closed_was"), rest["closed"])]
    if current.closed not in seen:  # after a lost reply, it has the new value
        stage = "open" if current.closed is None else f"in the stage {current.closed.stage!r}"
        raise StoreError(
            f"another `millrace move` has changed this store: it is {stage} now. This command stops here. Let the "
            "other one end, and run the command again."
        )
    return rest


def _check_lanes(settings: QueueSettings) -> None:
    lanes = settings.lanes or 0
    beyond = [lane for lane in settings.paused_lanes if not 0 <= lane < lanes]
    if beyond:
        raise InvalidInput(
            f"lane {beyond[0]} cannot be paused: the pool has lanes 0 to {lanes - 1}"
            if lanes
            else f"lane {beyond[0]} cannot be paused: the queue has no lanes"
        )


SMALLEST_SHARE = 1e-9  # below, the period would not fit a store's integers


def fair_period(settings: QueueSettings) -> int:
    """Return n if every n-th job claimed is the one that has been due the longest, or 0 if there is no fair share."""
    if settings.fair_share <= 0:
        return 0
    return max(1, round(1 / max(settings.fair_share, SMALLEST_SHARE)))
