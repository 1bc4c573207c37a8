"""The audit: replays a store's feed of events and says which promise of `docs/guarantees.md` it breaks, if any.

It knows nothing of a store but what it announced, and compares that with a ledger of runs kept outside of it: what
handlers themselves wrote down when they began and ended. The simulation and the kill -9 suite share it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from millrace.domain.event import Event, Kind
from millrace.domain.job import Spec

_ENDS = {Kind.COMPLETED: "completed", Kind.BURIED: "dead", Kind.CANCELLED: "cancelled"}
_RETURNS = frozenset({Kind.RETRIED, Kind.SNOOZED, Kind.RELEASED})
_AFTER_THE_END = frozenset({Kind.REPLAYED, Kind.ARCHIVED, Kind.UNARCHIVED, Kind.EVICTED, Kind.PRUNED})
MOST_PROBLEMS = 20
_LONG_STEP = 2_000  # milliseconds


def _enough(child: Spec) -> set[str]:
    """How a parent may end for its child to run."""
    return set(_ENDS.values()) if child.on_dependency == "run" else {"completed"}


class Run(msgspec.Struct, frozen=True):
    """One run as its handler saw it, written outside of the store. `how` is None while it has not ended."""

    job: str
    seq: int
    attempt: int
    worker: str
    began: int
    ended: int | None = None
    how: str | None = None


class Track(msgspec.Struct):
    """What the events so far say about one job."""

    spec: Spec
    seq: int
    due: int
    state: str = "waiting"
    n: int = 1
    attempt: int = 0
    failures: int = 0
    lease: str | None = None
    worker: str | None = None
    until: int = 0  # the lease is live at least until then: extending is no event
    waits_for: tuple[str, ...] = ()  # parents
    kinds: dict[Kind, int] = msgspec.field(default_factory=dict)

    def count(self, *kinds: Kind) -> int:
        return sum(self.kinds.get(kind, 0) for kind in kinds)


class Audit:
    """`specs` by id; an id that is missing was carried by another job (a hook) and is taken as it comes.

    `clock_may_step` is for stores on a real clock, whose events may be a few milliseconds out of order. `steps_overlap`
    is for those whose steps do (see `Store`): there what is told of one job is in order, to within the length of a
    step, and so are the seqs of a group.
    """

    def __init__(self, specs: Mapping[str, Spec], *, clock_may_step: bool = False, steps_overlap: bool = False) -> None:
        self.specs = specs
        self.tracks: dict[int, Track] = {}
        self.newest: dict[str, Track] = {}
        self.problems: list[str] = []
        self._slack = (_LONG_STEP if steps_overlap else 50) if clock_may_step else 0
        self._overlap = steps_overlap
        self._times: dict[int, int] = {}  # of the newest event of all jobs (0), or of each
        self._seqs: dict[tuple[str, str] | None, int] = defaultdict(int)  # the last of all jobs (None), or of a group
        self._leases: set[str] = set()
        self._claims: dict[tuple[int, int], Event] = {}
        self._completions: dict[tuple[int, int], Event] = {}
        self._ended: dict[str, set[str]] = defaultdict(set)
        self._holders: dict[tuple[str, str], int] = {}
        self._members: dict[tuple[str, str], dict[int, Track]] = defaultdict(dict)
        self._keys: dict[tuple[str, str], int] = {}

    def replay(self, events: Iterable[Event]) -> Audit:
        for event in events:
            self._take(event)
        return self

    def _take(self, event: Event) -> None:
        last = self._times.get(event.seq if self._overlap else 0, 0)
        self._want(event.at >= last - self._slack, event, f"the feed goes back in time by {last - event.at} ms")
        self._times[event.seq if self._overlap else 0] = max(last, event.at)
        if event.kind is Kind.ENQUEUED:
            self._enqueued(event)
            return
        track = self.tracks.get(event.seq)
        if track is None:
            self._want(False, event, "nobody enqueued it")
            return
        self._want(event.n == track.n + 1, event, f"event {event.n} follows event {track.n}")
        track.n = event.n
        track.kinds[event.kind] = track.kinds.get(event.kind, 0) + 1
        ended = track.state not in ("waiting", "running")
        self._want(not ended or event.kind in _AFTER_THE_END, event, f"it was {track.state} (I5)")
        self._apply(event, track)
        self._want(event.state == track.state, event, f"the event says {event.state}, its past makes it {track.state}")

    def _apply(self, event: Event, track: Track) -> None:
        if event.kind is Kind.CLAIMED:
            self._claimed(event, track)
        elif event.kind is Kind.RECLAIMED:
            self._reclaimed(event, track)
        elif event.kind in _RETURNS:
            self._returned(event, track)
        elif event.kind in _ENDS:
            self._finished(event, track)
        elif event.kind is Kind.REPLAYED:
            self._replayed(event, track)
        elif event.kind is Kind.UNBLOCKED:
            self._unblocked(event, track)

    def _enqueued(self, event: Event) -> None:
        spec = self.specs.get(event.job) or Spec(id=event.job, task=event.task, queue=event.queue, hook=True)
        track = Track(spec, event.seq, event.at + spec.delay)
        self._want(event.n == 1, event, f"its first event has the number {event.n}")
        self._check_seq(event, spec)
        before = self.newest.get(event.job)
        if before is not None:
            self._want(before.state in ("dead", "cancelled", "completed"), event, "the id was still live (I1)")
        if any(self._is_open(parent, spec) for parent in spec.after):
            track.waits_for = spec.after
        self.tracks[event.seq] = self.newest[event.job] = track
        self._take_key(event, track)
        if spec.group is not None and not spec.hook:
            self._members[spec.queue, spec.group][event.seq] = track

    def _check_seq(self, event: Event, spec: Spec) -> None:
        if self._overlap and spec.group is None:
            return
        place = (spec.queue, spec.group or "") if self._overlap else None
        last = self._seqs[place]
        self._want(event.seq > last, event, f"its seq does not grow: the last one was {last}")
        self._seqs[place] = event.seq

    def _claimed(self, event: Event, track: Track) -> None:
        self._want(track.state == "waiting", event, f"it was {track.state}, held by {track.worker} (I3)")
        self._want(event.at >= track.due, event, f"{track.due - event.at} ms before its time (I8)")
        self._want(event.attempt == track.attempt + 1, event, f"attempt {event.attempt} follows {track.attempt}")
        self._grant(event, track)
        track.attempt = event.attempt
        self._claims[event.seq, event.attempt] = event
        self._want(not track.waits_for, event, f"before its parents {track.waits_for} ended (I10)")
        self._check_group(event, track)
        track.state = "running"

    def _reclaimed(self, event: Event, track: Track) -> None:
        self._want(track.state == "running", event, f"it was {track.state}")
        left = track.until - self._slack - event.at
        self._want(left < 0, event, f"its lease was live for {left} ms more (I3)")
        self._grant(event, track)

    def _grant(self, event: Event, track: Track) -> None:
        self._want(event.lease is not None and event.lease not in self._leases, event, "its lease id is not new (I4)")
        self._leases.add(event.lease or "")
        track.lease, track.worker = event.lease, event.worker
        track.until = event.at + (track.spec.lease if event.kind is Kind.CLAIMED else 0)

    def extended(self, seq: int, until: int) -> None:
        """For whoever sees extends: the lease is live until then."""
        self.tracks[seq].until = until

    def _settled(self, event: Event, track: Track) -> None:
        self._want(track.state == "running", event, f"it was {track.state} (I4)")
        self._want(event.lease == track.lease, event, f"under {event.lease}, but {track.lease} holds it (I4)")
        track.lease = track.worker = None
        expected = track.failures + (event.kind is Kind.RETRIED)
        most = track.spec.max_attempts
        if event.kind in _RETURNS:
            self._want(event.failures == expected, event, f"{event.failures} failures, not {expected} (I6)")
            self._want(most is None or event.failures < most, event, f"{event.failures} failures of {most} (I6)")
        track.failures = event.failures
        self._want(most is None or event.failures <= most, event, f"{event.failures} failures of {most} (I6)")

    def _returned(self, event: Event, track: Track) -> None:
        self._settled(event, track)
        track.state = "waiting"
        track.due = event.at + (event.delay or 0)
        if not (event.kind is Kind.RETRIED and track.spec.retry_blocks):
            self._leave_group(track)

    def _finished(self, event: Event, track: Track) -> None:
        if event.lease is not None:
            self._settled(event, track)
        else:
            self._want(track.state == "waiting", event, f"it was {track.state}, and no lease is named (I4)")
        track.state = _ENDS[event.kind]
        self._ended[event.job].add(track.state)
        if event.kind is Kind.COMPLETED:
            self._completions[event.seq, event.attempt] = event
        self._leave_group(track)
        if track.spec.key is not None and self._keys.get((track.spec.queue, track.spec.key)) == track.seq:
            del self._keys[track.spec.queue, track.spec.key]

    def _unblocked(self, event: Event, track: Track) -> None:
        self._want(bool(track.waits_for), event, "it waited for nobody")
        for parent in track.waits_for:
            self._want(bool(self._ended[parent] & _enough(track.spec)), event, f"before {parent} ended (I10)")
        track.waits_for = ()

    def _is_open(self, parent: str, child: Spec) -> bool:
        """A parent that is still to come, or was brought back, has to end first."""
        known = self.newest.get(parent)
        return known is None or known.state not in _enough(child)

    def _replayed(self, event: Event, track: Track) -> None:
        """Somebody's explicit wish: it waits for no parent that has ended, but for those that are live."""
        track.state, track.due, track.failures = "waiting", event.at, 0
        known = {parent: self.newest.get(parent) for parent in track.spec.after}
        track.waits_for = tuple(p for p, one in known.items() if one and one.state in ("waiting", "running"))
        self._take_key(event, track)

    # ── groups and keys ───────────────────────────────────────────────────────────────────────

    def _check_group(self, event: Event, track: Track) -> None:
        if track.spec.group is None or track.spec.hook:
            return
        place = (track.spec.queue, track.spec.group)
        holder = self._holders.get(place)
        self._want(holder in (None, track.seq), event, f"its group is held by seq {holder} (I9)")
        for other in self._members[place].values() if holder is None else ():
            before = (-other.spec.priority, other.seq) < (-track.spec.priority, track.seq)
            able = other.state == "waiting" and other.due <= event.at and not other.waits_for
            self._want(not (before and able), event, f"seq {other.seq} of its group came before it (I9)")
        self._holders[place] = track.seq

    def _leave_group(self, track: Track) -> None:
        place = (track.spec.queue, track.spec.group or "")
        if self._holders.get(place) == track.seq:
            del self._holders[place]
        if track.state not in ("waiting", "running"):
            self._members[place].pop(track.seq, None)
        elif place in self._members:
            self._members[place][track.seq] = track

    def _take_key(self, event: Event, track: Track) -> None:
        spec = track.spec
        if spec.key is None or spec.scope != "live":
            return
        owner = self._keys.setdefault((spec.queue, spec.key), track.seq)
        self._want(owner == track.seq, event, f"its key is held by seq {owner} (I11)")

    # ── against the ledger of runs ────────────────────────────────────────────────────────────

    def compare(self, runs: Sequence[Run]) -> Audit:
        """Every run was granted, once, to the worker that made it; every completion was earned by a run."""
        seen: dict[tuple[int, int], Run] = {}
        for run in runs:
            fence = (run.seq, run.attempt)
            claim = self._claims.get(fence)
            if claim is None:
                self._tell(f"{run} was never granted (I2)")
                continue
            if fence in seen:
                self._tell(f"{run} is the second run under one fence; the first is {seen[fence]} (I7)")
            seen[fence] = run
            if claim.worker != run.worker:
                self._tell(f"{run} was granted to {claim.worker} (I3)")
            if run.began < claim.at - self._slack:
                self._tell(f"{run} began before it was granted at {claim.at} (I8)")
        for fence, event in self._completions.items():
            earned = seen.get(fence)
            if earned is None or earned.how != "returned":
                self._tell(f"job {event.job} was completed as attempt {fence[1]}, whose run says {earned} (I2)")
        for track in self.tracks.values():
            self._check_number_of_claims(track)
        return self

    def _check_number_of_claims(self, track: Track) -> None:
        """Each claim but the first follows an event that gives a reason for it (I6, I7)."""
        claims = track.count(Kind.CLAIMED)
        reasons = track.count(*_RETURNS, Kind.REPLAYED)
        if claims > 1 + reasons:
            self._tell(f"job {track.spec.id} (seq {track.seq}) was claimed {claims} times with {reasons} reasons (I7)")

    def unfinished(self) -> list[Track]:
        return [track for track in self.tracks.values() if track.state in ("waiting", "running")]

    def require(self, holds: bool, otherwise: str) -> None:
        """For promises that only the caller can judge."""
        if not holds:
            self._tell(otherwise)

    def _want(self, holds: bool, event: Event, otherwise: str) -> None:
        if not holds:
            self._tell(f"{event.kind} of job {event.job} (seq {event.seq}, attempt {event.attempt}): {otherwise}")

    def _tell(self, problem: str) -> None:
        if len(self.problems) < MOST_PROBLEMS:
            self.problems.append(problem)
