"""Checks that compare jobs: a child starts after its parents, and each id and each key has at most one live job.

The rules about ids, keys, instants and unblocking are checked only if the events of different jobs are known to be in
order (`Evidence.ordered_to`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from millrace.domain.audit.evidence import Evidence, Violation, find_spec, violation
from millrace.domain.event import Event, Kind
from millrace.domain.job import FINISHED, LIVE, Spec, State


class _Track:
    """The state of one job after the events read so far, and the parents that the job waits for."""

    __slots__ = ("replayed", "spec", "state", "waits_for")

    def __init__(self, event: Event, spec: Spec | None) -> None:
        self.spec = spec
        self.state = event.state
        self.replayed = event.kind is Kind.REPLAYED
        self.waits_for: tuple[str, ...] = ()


def check_dependencies(evidence: Evidence) -> tuple[list[Violation], set[tuple[int, int]]]:
    """Return (violations, blocking events).

    A blocking event is an event after which its job waits for parents. It is given as (seq, n). The set of blocking
    events is empty if the order of the feed is not known.
    """
    walk = _Walk(evidence)
    found = [each for event in evidence.events for each in walk.follow(event)]
    return found, walk.blocked


class _Walk:
    def __init__(self, evidence: Evidence) -> None:
        self.blocked: set[tuple[int, int]] = set()
        self._evidence = evidence
        self._spec_of = find_spec(evidence)
        self._tracks: dict[int, _Track] = {}
        self._newest: dict[str, _Track] = {}
        self._ended: defaultdict[str, set[str]] = defaultdict(set)
        self._owners: dict[tuple[str, str], int] = {}
        self._latest: dict[int, int] = {}

    def follow(self, event: Event) -> Iterator[Violation]:
        track = self._tracks.get(event.seq)
        if track is None:
            track = self._tracks[event.seq] = _Track(event, self._spec_of(event))
        elif track.spec is not None and track.spec.after:
            yield from self._check_parents(event, track, track.spec)
        if self._evidence.ordered_to is not None:
            yield from self._check_order(event, track, self._evidence.ordered_to)
        track.state = event.state
        track.replayed |= event.kind is Kind.REPLAYED
        if event.kind is Kind.ENQUEUED:
            self._newest[event.job] = track
        if event.state in FINISHED:
            self._ended[event.job].add(event.state)

    def _check_parents(self, event: Event, track: _Track, spec: Spec) -> Iterator[Violation]:
        """Yield violations of the rules on parents.

        A replayed child waits only for the parents that were live at the time of the replay.
        """
        if event.kind is Kind.CLAIMED:
            for parent in () if track.replayed else spec.after:
                how = self._ended.get(parent)
                if (how or self._evidence.whole) and not (how or set()) & _enough(spec):
                    yield violation(event, "before_parent", f"started, and {parent!r} had not completed")
            if track.waits_for:
                yield violation(event, "before_parent", f"started while it waited for {', '.join(track.waits_for)}")
        elif event.kind is Kind.UNBLOCKED and self._evidence.ordered_to is not None:
            if not track.waits_for:
                yield violation(event, "unblocked", "unblocked, and it waited for no parent")
            for parent in track.waits_for:
                if not self._ended[parent] & _enough(spec):
                    yield violation(event, "unblocked", f"unblocked before {parent!r} ended")
            track.waits_for = ()

    def _check_order(self, event: Event, track: _Track, slack: int) -> Iterator[Violation]:
        """Yield violations of the rules that apply only if the events of different jobs are in order."""
        clock = event.seq if self._evidence.concurrent_writes else 0
        latest = self._latest.get(clock, event.at)
        if event.at < latest - slack:
            yield violation(event, "time", f"the feed goes back in time by {latest - event.at} ms")
        self._latest[clock] = max(latest, event.at)
        before = self._newest.get(event.job)
        if event.kind is Kind.ENQUEUED and before is not None and before.state in LIVE:
            yield violation(event, "id", f"enqueued while a job with its id was {before.state}")
        spec = track.spec
        if spec is None:
            return
        if event.kind in (Kind.ENQUEUED, Kind.REPLAYED):
            track.waits_for = self._open_parents(event, spec)
            if track.waits_for:
                self.blocked.add((event.seq, event.n))
        if spec.key is not None and spec.scope != "window":
            yield from self._check_key(event, (spec.queue, spec.key))

    def _open_parents(self, event: Event, child: Spec) -> tuple[str, ...]:
        """Return the parents that a job waits for after it was enqueued or replayed.

        A new job waits for all its parents, or for none if every parent has already ended in a state that allows the
        job to run. A replayed job waits for the parents that are live.
        """
        known = {parent: self._newest.get(parent) for parent in child.after}
        if event.kind is Kind.REPLAYED:
            return tuple(parent for parent, track in known.items() if track is not None and track.state in LIVE)
        enough = _enough(child)
        return child.after if any(track is None or track.state not in enough for track in known.values()) else ()

    def _check_key(self, event: Event, key: tuple[str, str]) -> Iterator[Violation]:
        if event.kind in (Kind.ENQUEUED, Kind.REPLAYED):
            owner = self._owners.setdefault(key, event.seq)
            if owner != event.seq:
                yield violation(event, "key", f"its key {key[1]!r} of {key[0]!r} is held by seq {owner}")
        elif event.state in FINISHED and self._owners.get(key) == event.seq:
            del self._owners[key]


def _enough(child: Spec) -> frozenset[State]:
    """Return the final states of a parent that allow this child to run."""
    return FINISHED if child.on_dependency == "run" else frozenset({State.COMPLETED})
