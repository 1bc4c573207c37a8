"""The layout of the store: the key of each object, and what the key contains.

tasks/{shard}/{name}.json                                     a job for its whole life: the authoritative record
ready/{shard}/{queue}/{rank}/{minute}/{at}.{seq}.{rev}.{flags}.{task}.{name}   waiting and open: claimable when due
held/{queue}/{line}/{rank}/{minute}/{seq}.{at}.{rev}.{flags}.{task}.{name}     waiting, but not open
leases/{shard}/{minute}/{until}.{seq}.{rev}.{flags}.{queue}.{task}.{name}      running
done/{queue}/{state}/{minute}/{at}.{seq}.{rev}.{flags}.{task}.{name}           finished
gone/{minute}/{at}.{seq}.{name}                                                a pruned job that is still remembered
deps/{parent}/{seq}.{child}                                   the job `child` waits for the job `parent`
due/…, upkeep/…                                               triggers: check these jobs at that time
ticks/{minute}/{at}.{rev}.{name}                              the schedule `name` is due at that time
lines/ keys/ control/ schedules/ workers/ writers/ feed/ batches/ data/ archive/

The keys from `ready/` to `deps/`, and `ticks/`, are an index: immutable, empty objects with unique names, so deleting a
stale key never deletes a newer one. A job is open if it is not blocked by parents and, if it has a line, is first in
it. `rev` grows with every write of the job and ends in a nonce. `rank` is 15 − priority, and `minute` is the epoch
minute of the time in the key, so keys sort in the order in which they are read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from hashlib import sha256

import msgspec

from millrace.domain.job import MINUTE, Job, State, is_kept_for_children
from millrace.domain.schedule import Schedule

_PLAIN_ID = re.compile(r"[a-z0-9-]{1,64}")
_UUID = re.compile(r"[0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12}")
_PLAIN_WORD = re.compile(r"[a-z0-9_-]+")
_LITERAL = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789_-")
_ESCAPE = re.compile(r"=([0-9a-f]{2})")
LONGEST_WORD = 48
STATE_LETTERS = {State.COMPLETED: "c", State.DEAD: "d", State.CANCELLED: "x"}
STATES_OF_LETTERS = {letter: state for state, letter in STATE_LETTERS.items()}
NO_LINE = "-"


def _utf8(text: str) -> bytes:
    """Encode any text, even one with lone surrogates. Such a text cannot be enqueued, but it may be searched for."""
    return text.encode("utf-8", "surrogatepass")


def _hash(text: str) -> str:
    return sha256(_utf8(text)).hexdigest()


@lru_cache(maxsize=1 << 14)
def name_of(job_id: str) -> str:
    """Return a job id as part of a key: the id itself if it is allowed in every store, otherwise a hash."""
    return job_id if _PLAIN_ID.fullmatch(job_id) else "x" + _hash(job_id)


def name_in(job_key: str) -> str:
    return job_key.rsplit("/", 1)[1].removesuffix(".json")


def stamp_of(feed_key: str) -> int:
    return int(feed_key.rsplit("/", 1)[1].removesuffix(".json"))


def is_data(key: str) -> bool:
    return key.startswith("data/")


def is_tick(key: str) -> bool:
    return key.startswith("ticks/")


@lru_cache(maxsize=1 << 12)
def word(name: str) -> str:
    """Return the name of a queue or task as part of a key: a readable spelling, or a hash if that is too long."""
    if _PLAIN_WORD.fullmatch(name) and len(name) <= LONGEST_WORD:
        return name
    spelled = "".join(chr(byte) if byte in _LITERAL else f"={byte:02x}" for byte in _utf8(name))
    return spelled if len(spelled) <= LONGEST_WORD else "+" + _hash(name)[:40]


@lru_cache(maxsize=1 << 12)
def unspelled(spelled: str) -> str | None:
    """Return the name of the queue or task that a key part stands for; None if the key part is a hash."""
    if spelled.startswith("+"):
        return None
    return _ESCAPE.sub(lambda found: chr(int(found.group(1), 16)), spelled).encode("latin-1").decode()


@lru_cache(maxsize=1 << 12)
def line_word(line: str) -> str:
    """Return the name of a group or lane (`l:3`, `g:customer 7`) as part of a key."""
    kind, _, name = line.partition(":")
    if _PLAIN_ID.fullmatch(name) and len(name) <= LONGEST_WORD:
        return f"{kind}-{name}"
    return f"{kind}+{_hash(name)[:40]}"


def minute_of(at: int) -> str:
    return f"{max(0, at) // MINUTE:08d}"


class IndexEntry(msgspec.Struct, frozen=True, gc=False):
    """A job, as one of its index keys describes it."""

    key: str
    state: State
    queue: str  # as spelled in keys
    task: str  # likewise
    name: str
    seq: int
    rev: int
    at: int  # available_at, lease_until or finished_at
    flags: str = ""
    priority: int = 0
    line: str = NO_LINE


class Layout:
    """Builds and parses keys. A shard has `width` hex digits; the default of 1 means 16 shards."""

    def __init__(self, width: int = 1) -> None:
        self.width = width
        self.shards = tuple(f"{n:0{width}x}" for n in range(16**width)) if width else ("0",)

    def shard_of(self, name: str) -> str:
        return _shard(name, self.width)

    def job(self, job_id: str) -> str:
        return _job_key(job_id, self.width)

    def job_by_name(self, name: str) -> str:
        return _named_job_key(name, self.width)

    def state_key(self, job: Job, number: int, nonce: str) -> str:
        """Return the job's key in the index of its state. Every job has exactly one such key.

        The nonce distinguishes the keys of two concurrent writers of the same job. The writer that loses deletes its
        key.
        """
        spec = job.spec
        rev = f"{number}-{nonce}"
        name = name_of(spec.id)
        queue, task = word(spec.queue), word(spec.task)
        rank = f"{15 - spec.priority:x}"
        if job.state is State.RUNNING:
            until = job.lease_until or 0
            shard = self.shard_of(name)
            flags = "k" if spec.hook else "-"
            return f"leases/{shard}/{minute_of(until)}/{until:013d}.{job.seq:019d}.{rev}.{flags}.{queue}.{task}.{name}"
        if job.state is not State.WAITING:
            letter, at = STATE_LETTERS[job.state], job.finished_at or 0
            flags = "a" * job.archived + "n" * is_kept_for_children(job) or "-"  # n: a child needs its result
            return f"done/{queue}/{letter}/{minute_of(at)}/{at:013d}.{job.seq:019d}.{rev}.{flags}.{task}.{name}"
        at = job.available_at
        flags = _flags(job)
        if job.open:
            shard = self.shard_of(name)
            rest = f"{minute_of(at)}/{at:013d}.{job.seq:019d}.{rev}.{flags}.{task}.{name}"
            return f"ready/{shard}/{queue}/{rank}/{rest}"
        line = line_word(job.line) if job.in_line and job.line else NO_LINE
        rest = f"{minute_of(job.seq >> 20)}/{job.seq:019d}.{at:013d}.{rev}.{flags}.{task}.{name}"
        return f"held/{queue}/{line}/{rank}/{rest}"

    @staticmethod
    def parse(key: str) -> IndexEntry | None:
        """Parse a state key. Return None if the key is not a state key."""
        try:
            family, rest = key.split("/", 1)
            return _PARSERS[family](key, rest)
        except (KeyError, ValueError):
            return None

    @classmethod
    def entries(cls, keys: Iterable[str]) -> list[IndexEntry]:
        """Return the entries of these state keys; other keys are skipped."""
        return [entry for key in keys if (entry := cls.parse(key)) is not None]

    def prefixes_of_queue(self, queue: str) -> list[str]:
        """Return the prefixes of the state keys of a queue. `queue` is the name as spelled in keys.

        The prefix of running jobs covers all queues, because their keys are not sorted by queue.
        """
        return [*(f"ready/{shard}/{queue}/" for shard in self.shards), f"held/{queue}/", "leases/", f"done/{queue}/"]

    @staticmethod
    def gone(at: int, seq: int, job_id: str) -> str:
        return f"gone/{minute_of(at)}/{at:013d}.{seq:019d}.{name_of(job_id)}"

    @staticmethod
    def dependency(parent: str, seq: int, child: str) -> str:
        return f"deps/{name_of(parent)}/{seq:019d}.{name_of(child)}"

    @staticmethod
    def trigger(family: str, at: int, stamp: int) -> str:
        return f"{family}/{minute_of(at)}/{at:013d}.{stamp:019d}.json"

    @staticmethod
    def feed(stamp: int) -> str:
        return f"feed/{minute_of(stamp >> 20)}/{stamp:019d}.json"

    @staticmethod
    def writer(number: int) -> str:
        return f"writers/{number:05d}.json"

    @staticmethod
    def batch(stamp: int, nonce: str) -> str:
        return f"batches/{minute_of(stamp >> 20)}/{stamp:019d}.{nonce}.json"

    @staticmethod
    def line(queue: str, line: str) -> str:
        return f"lines/{word(queue)}/{line_word(line)}.json"

    @staticmethod
    def unique_key(queue: str, key: str) -> str:
        return f"keys/{word(queue)}/{_hash(key)[:40]}.json"

    @staticmethod
    def queue(queue: str) -> str:
        return f"control/queues/{word(queue)}.json"

    @staticmethod
    def schedule(name: str) -> str:
        return f"schedules/{word(name)}.json"

    @staticmethod
    def tick(schedule: Schedule | None) -> str | None:
        """Return the key by which a schedule is found when it is due; None if it has no `due_at`."""
        if schedule is None or schedule.due_at is None:
            return None
        at = schedule.due_at
        return f"ticks/{minute_of(at)}/{at:013d}.{schedule.rev:016d}.{word(schedule.name)}"

    @staticmethod
    def worker(worker_id: str) -> str:
        return f"workers/{name_of(worker_id)}.json"

    def data(self, job_id: str, what: str, nonce: str) -> str:
        name = name_of(job_id)
        return f"data/{self.shard_of(name)}/{name}/{what}-{nonce}.json"


# Families of empty objects: the key says everything.
MARKERS = ("ready/", "held/", "leases/", "done/", "gone/", "deps/")
TASKS = "control/tasks.json"
STORE = "control/store.json"
LAYOUT = "control/layout.json"


@lru_cache(maxsize=1 << 14)
def _job_key(job_id: str, width: int) -> str:
    return _named_job_key(name_of(job_id), width)


@lru_cache(maxsize=1 << 14)
def _named_job_key(name: str, width: int) -> str:
    return f"tasks/{_shard(name, width)}/{name}.json"


@lru_cache(maxsize=1 << 14)
def _shard(name: str, width: int) -> str:
    if not width:
        return "0"
    if _UUID.fullmatch(name):
        return name[:width]
    if len(name) > 64:  # already a hash
        return name[1 : 1 + width]
    return _hash(name)[:width]


def _flags(job: Job) -> str:
    """Return the flags of a waiting job.

    b: blocked; o: outside its line until due; h: holds its line; f: an attempt has failed before; k: a hook job.
    """
    outside = job.line is not None and not (job.in_line or job.holds or job.blocked or job.open)
    said = "b" * bool(job.blocked) + "o" * outside + "h" * job.holds + "f" * (job.failures > 0)
    said += "k" * job.spec.hook
    return said or "-"


def _rev(text: str) -> int:
    return int(text.partition("-")[0])


def _ready(key: str, rest: str) -> IndexEntry:
    _, queue, rank, _, leaf = rest.split("/")
    at, seq, rev, flags, task, name = leaf.split(".")
    return IndexEntry(
        key, State.WAITING, queue, task, name, int(seq), _rev(rev), int(at), "r" + flags, 15 - int(rank, 16)
    )


def _held(key: str, rest: str) -> IndexEntry:
    queue, line, rank, _, leaf = rest.split("/")
    seq, at, rev, flags, task, name = leaf.split(".")
    rank_of = 15 - int(rank, 16)
    return IndexEntry(key, State.WAITING, queue, task, name, int(seq), _rev(rev), int(at), flags, rank_of, line)


def _lease(key: str, rest: str) -> IndexEntry:
    _, _, leaf = rest.split("/")
    until, seq, rev, flags, queue, task, name = leaf.split(".")
    return IndexEntry(key, State.RUNNING, queue, task, name, int(seq), _rev(rev), int(until), flags)


def _done(key: str, rest: str) -> IndexEntry:
    queue, letter, _, leaf = rest.split("/")
    at, seq, rev, flags, task, name = leaf.split(".")
    return IndexEntry(key, STATES_OF_LETTERS[letter], queue, task, name, int(seq), _rev(rev), int(at), flags)


_PARSERS = {"ready": _ready, "held": _held, "leases": _lease, "done": _done}
