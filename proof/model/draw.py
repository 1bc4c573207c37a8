"""Strategies of the model: few names, so that jobs interact, and every option often enough to matter.

The simplest values come first, because failing examples are shrunk in that direction.
"""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import strategies as st

from millrace.domain.job import DAY, MINUTE, SECOND, Job
from millrace.domain.outcome import (
    Buried,
    CancelledOnRequest,
    Failure,
    Lost,
    Outcome,
    Raised,
    Released,
    Returned,
    Snoozed,
    TimedOut,
)
from millrace.domain.request import Query
from millrace.domain.retry import RetryPolicy

POOL = ("a", "b", "c", "d", "e", "f")  # ids that are reused
QUEUES = ("q", "r", "pool")
TASKS = ("work", "mail")
WORKERS = ("w1", "w2")
ERROR = Failure("ValueError", "no")
STEADY = RetryPolicy(initial=2 * SECOND, jitter=0.0)


class Wish(msgspec.Struct, frozen=True):
    """A spec to be made; names are chosen among the existing ones when the rule runs."""

    fresh: bool
    name: int
    fields: dict[str, Any]
    after: tuple[int, ...] = ()
    again: int | None = None  # repeat an earlier spec, like a client that lost the reply


def _one(*values: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from(values)


def _outcomes(*outcomes: Outcome) -> st.SearchStrategy[Outcome]:
    return st.sampled_from(outcomes)


_NAME = st.integers(0, 5)
_FRESH = _one(True, True, False)
_FIELDS: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "group": {"group": _one("g", "h"), "retry_blocks": _one(True, True, False)},
    "delay": {"delay": _one(SECOND, 30 * SECOND, 10 * MINUTE)},
    "priority": {"priority": _one(1, 5, 15)},
    "budget": {"max_attempts": _one(1, 2, None), "max_stalls": _one(1, 2, None), "on_timeout": _one("retry", "bury")},
    "expires": {"expires": _one(1, 5 * SECOND, MINUTE)},
    "key": {
        "key": _one("k", "k", "l"),
        "scope": _one("live", "live", "window", "retained"),
        "on_hit": _one("keep", "replace", "extend", "raise"),
    },
    "after": {"on_dependency": _one("bury", "run", "wait"), "allow_missing": _one(False, True)},
    "result": {"keep_result": _one(0, SECOND, None), "lease": _one(SECOND, DAY)},
    "letter": {"on_dead_letter": _one("bell")},
    "stubborn": {"reuse": _one(False)},
    "cache": {"rerun_expired": _one(True), "keep_result": _one(SECOND, 0)},
    "tags": {"tags": _one(("a",), ("a", "b"))},
    "again": {},
}


@st.composite
def wishes(draw: st.DrawFn, *traits: str) -> Wish:
    """A wish with one of these sets of traits."""
    own = draw(st.sampled_from(traits)).split()
    fields: dict[str, Any] = {"queue": draw(_QUEUE), "task": draw(_TASK)}
    for trait in own:
        for field, values in _FIELDS[trait].items():
            fields[field] = draw(values)
    if fields.get("on_hit") == "extend":
        fields["scope"] = "window"
    if fields.get("scope") == "window":
        fields["window"] = 5 * SECOND
    fresh = draw(_FRESH)
    name = draw(_NAME)
    if not fresh:
        fields["payload"] = draw(_PAYLOAD)
    after = tuple(draw(_PARENTS)) if "after" in own else ()
    return Wish(fresh, name, fields, after, draw(_NAME) if "again" in own else None)


def _into_q(wish: Wish) -> Wish:
    """Into one queue, so that it gets many dead jobs."""
    return msgspec.structs.replace(wish, fields={**wish.fields, "queue": "q"})


_QUEUE = _one("q", "q", "pool", "r")
_TASK = _one("work", "work", "mail")
_PAYLOAD = _one(b"1", b"2")
_PARENTS = st.lists(st.integers(-2, 7), min_size=1, max_size=2)

plain = wishes(
    "",
    "delay",
    "priority",
    "budget",
    "expires",
    "result",
    "letter budget",
    "stubborn",
    "letter expires",
    "cache",
    "tags",
    "tags priority",
)
in_line = wishes(
    "group", "group delay", "group priority", "group budget", "group budget priority", "group expires", "group tags"
)
with_key = wishes("key", "key group", "key delay", "key expires", "key stubborn", "key budget")
after_others = wishes(
    "after", "after group", "after key delay", "after expires priority", "after letter", "after budget"
)
ranked = wishes("priority", "", "priority delay")
doomed = wishes("budget", "budget letter", "budget group", "budget expires").map(_into_q)
once_more = wishes("again")
anything = st.one_of(plain, in_line, with_key, after_others)
some_wishes = st.lists(st.one_of(anything, once_more), min_size=1, max_size=4)


def _repeated(wishes: list[Wish], size: int) -> list[Wish]:
    return [wishes[place % len(wishes)] for place in range(max(size, len(wishes)))]


bare = st.builds(Wish, _one(True), _NAME, st.fixed_dictionaries({"queue": _one("q", "r"), "task": _TASK}))
bare_batches = st.builds(_repeated, st.lists(bare, min_size=1, max_size=2), _one(2, 3, 8, 20))
batches = st.builds(_repeated, some_wishes, _one(1, 1, 1, 2, 5, 20))  # each wish without an id makes a new job
_NEXT = -1  # the parent is the next one in the batch
families = st.tuples(plain, plain).map(
    lambda pair: [
        Wish(True, pair[0].name, {**pair[0].fields, "on_dependency": "bury"}, (_NEXT,)),
        Wish(True, pair[1].name, pair[1].fields),
    ]
)
some_queues = _one(("q",), ("pool",), QUEUES, QUEUES, ("r", "q"), ("q", "q"))
some_tasks = _one(None, None, None, frozenset({"work"}), frozenset({"mail", "bell"}), frozenset[str]())
workers = _one(*WORKERS)
limits = _one(1, 2, 3, 10, 0)
leases = _one(None, 30 * SECOND, SECOND)
delays = _one(0, SECOND, 45 * SECOND)
indexes = st.integers(0, 7)
index_lists = st.lists(indexes, min_size=1, max_size=3)
id_lists = st.one_of(index_lists, index_lists, st.lists(st.integers(0, 30), min_size=2, max_size=20))
LEASES = ("held", "held", "held", "stale", "twice", "forged", "unknown")
_PLACES = st.integers(0, 19)


def keep_result_of(job: Job) -> int | msgspec.UnsetType | None:
    """Return the default of a job's worker: w2 has one for jobs with a priority."""
    if job.worker != "w2" or not job.priority:
        return msgspec.UNSET
    return (0, SECOND, None)[job.seq % 3]


lease_lists = st.one_of(
    st.lists(st.tuples(_one("held"), _one(0)), min_size=2, max_size=20),
    st.lists(st.tuples(st.sampled_from(LEASES), _PLACES), min_size=2, max_size=20),
    st.lists(st.tuples(st.sampled_from(LEASES), _PLACES), min_size=2, max_size=3),
    st.lists(
        st.tuples(_one("held", "held", "held", "forged", "lost"), _PLACES), min_size=2, max_size=20
    ),  # all of them run
    st.lists(st.tuples(_one("held", "held", "held", "forged", "lost"), _PLACES), min_size=2, max_size=3),
)

good_ends = _outcomes(Returned(b"ok"), Returned(None), Returned(b"ok"))
bad_ends = _outcomes(
    Raised(ERROR),
    Raised(ERROR),
    Raised(ERROR, after=0),
    Raised(ERROR, after=20 * SECOND),
    TimedOut(ERROR),
    Buried(ERROR),
)
other_ends = _outcomes(
    Snoozed(5 * SECOND), Released(), Released(3 * SECOND), CancelledOnRequest(), Lost(ERROR), Lost(ERROR, True)
)
any_end = st.one_of(good_ends, bad_ends, other_ends)
many_ends = st.one_of(
    st.lists(good_ends, min_size=1, max_size=1),  # these take the fast paths
    st.lists(any_end, min_size=1, max_size=4),
)

moves = _one(0.001, 1.0, 1.0, 5.0, 5.001, 31.0, 31.0, 61.0, 600.0, 3_600.0, 90_000.0, 8 * 86_400.0, -0.5, -2.0)

_DEAD_LETTER_CHANGES: tuple[dict[str, Any], ...] = (
    {"dead_cap": 1},
    {"dead_cap": 0, "dead_overflow": "evict", "keep_dead": None},
    {"dead_cap": 1, "dead_overflow": "archive"},
    {"dead_cap": 1, "dead_overflow": "reject"},
    {"dead_cap": 1, "dead_overflow": "reject", "auto_retries": 0, "keep_dead": None},
    {"auto_retries": 2, "auto_retry_delay": 5 * SECOND},
    {"auto_retries": 1, "auto_retry_delay": 0, "dead_cap": 2},
)
dead_letter_changes = st.sampled_from(_DEAD_LETTER_CHANGES)

queue_changes: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
    (
        {"paused": False},
        {"paused": True},
        {"paused": False, "max_running": None, "rate": None, "max_depth": None},
        {"max_running": 1},
        {"max_running": 2},
        {"max_running": 0},
        {"rate": 0.5, "burst": 2},
        {"rate": 3.0},
        {"rate": None, "burst": None},
        {"fair_share": 0.5},
        {"fair_share": 0.34},
        {"fair_share": 0.0},
        {"paused_lanes": []},
        {"paused_lanes": [0]},
        {"paused_lanes": [1]},
        {"paused_lanes": [7]},
        {"lanes": 2},
        {"lanes": 3},
        {"lanes": None, "paused_lanes": []},
        {"max_depth": 2},
        {"max_depth": 0},
        {"max_depth": None},
        {"keep_completed": 0},
        {"keep_completed": None},
        {"keep_completed": 5 * SECOND},
        {"keep_dead": 0},
        {"keep_dead": None},
        {"keep_dead": 5 * SECOND},
        *_DEAD_LETTER_CHANGES,
        {"dead_cap": 10_000, "dead_overflow": "evict"},
        {"auto_retries": 0},
        {"on_empty": "bell"},
        {"on_empty": None},
        {"rate": -1.0},
        {"no_such": 1},
    )
)
task_changes: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
    ({"max_running": 1}, {"max_running": None}, {"rate": 1.0, "burst": 1}, {"rate": None, "burst": None}, {"burst": 0})
)
store_changes: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
    ({"keep_events": 7 * DAY}, {"keep_events": 30 * SECOND}, {"keep_events": None}, {"keep_events": 0})
)

_QUEUE_SETTING = st.tuples(_one("queue"), st.sampled_from(QUEUES), queue_changes)
settings = st.one_of(
    _QUEUE_SETTING,
    _QUEUE_SETTING.map(tuple),  # twice, because most settings are of queues
    st.tuples(_one("task"), st.sampled_from(TASKS), task_changes),
    st.tuples(_one("store"), _one(""), store_changes),
)

queries: st.SearchStrategy[Query] = st.builds(
    Query,
    queue=_one(None, *QUEUES),
    task=_one(None, "work"),
    state=_one(None, "waiting", "ready", "scheduled", "retrying", "blocked", "running", "completed", "failed"),
    group=_one(None, None, "g"),
    key=_one(None, None, "k"),
    archived=_one(False, None, True),
    newest_first=st.booleans(),
    limit=_one(2, 100),
)
