"""The picture of the states says what the code does: every transition is in it, and leads where it leads there."""

from __future__ import annotations

import inspect
import re
import xml.etree.ElementTree as xml
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import pytest

from millrace.domain.change import Change, Verb
from millrace.domain.event import Event, Kind
from millrace.domain.job import FINISHED, Job, Spec, State, Word
from millrace.domain.rules import transition
from tests.narrowing import the

ROOT = Path(__file__).resolve().parents[2]
SVG = "{http://www.w3.org/2000/svg}"
PICTURE = xml.parse(ROOT / "docs/images/states.svg").getroot()
PAGE = (ROOT / "docs/states.md").read_text(encoding="utf-8")


@dataclass(frozen=True)
class Arrow:
    name: str
    source: frozenset[str]
    target: frozenset[str]
    events: frozenset[str]
    reason: str | None
    label: str


def words(text: str | None) -> frozenset[str]:
    return frozenset((text or "").split())


def arrows() -> list[Arrow]:
    return [
        Arrow(
            group.attrib["id"],
            words(group.get("data-from")),
            words(group.get("data-to")),
            words(group.get("data-event")),
            group.get("data-reason"),
            " ".join("".join(text.itertext()) for text in group.iter(f"{SVG}text")),
        )
        for group in PICTURE.iter(f"{SVG}g")
        if "data-from" in group.attrib
    ]


def a_job(state: State) -> Job:
    job = Job(Spec("id", "task"), 1, 1, state, 0, 0)
    if state is State.RUNNING:
        job.worker, job.lease_id, job.lease_until = "worker", "lease", 1
    return job


def drawn(kind: Kind, source: str, target: str, reason: str | None = None) -> bool:
    return any(
        kind.value in arrow.events
        and (source in arrow.source if source else not arrow.source)
        and (target in arrow.target if target else not arrow.target)
        and (reason is None or arrow.reason == reason)
        for arrow in arrows()
    )


def what_the_code_does() -> list[tuple[str, str, Event, Job, bool]]:
    """(name, state before, event, job after, is it gone): each transition from each state that it is for."""
    found: list[tuple[str, str, Event, Job, bool]] = []

    def saw(name: str, before: str, event: Event, job: Job, gone: bool = False) -> None:
        found.append((name, before, event, job, gone))

    job, event = transition.enqueue(Spec("id", "task"), 1, 1, 0)
    saw("enqueue", "", event, job)
    job = a_job(State.WAITING)
    saw("claim", "waiting", transition.claim(job, "worker", "lease", 1, 0), job)
    job = a_job(State.WAITING)
    saw("unblock", "waiting", transition.unblock(job, 0), job)
    for reason in ("ttl_expired", "dependency_failed"):
        job = a_job(State.WAITING)
        saw("bury", "waiting", transition.bury(job, reason, 0), job)
    job = a_job(State.WAITING)
    saw("cancel", "waiting", transition.cancel(job, 0), job)
    job = a_job(State.RUNNING)
    saw("reclaim", "running", transition.reclaim(job, "reaper", "other", 1, 0), job)
    for verb in Verb:
        job = a_job(State.RUNNING)
        saw("settle", "running", transition.settle(job, Change(verb), 0), job)
    for state in sorted(FINISHED):
        job = a_job(state)
        saw("replay", state, transition.replay(job, 0), job)
        for archived in (True, False):
            job = a_job(state)
            saw("archive", state, transition.archive(job, archived, 0), job)
        job = a_job(state)
        saw("remove", state, transition.remove(job, Kind.PRUNED, 0), job, gone=True)
    job = a_job(State.DEAD)
    saw("remove", "dead", transition.remove(job, Kind.EVICTED, 0), job, gone=True)
    job = a_job(State.DEAD)
    saw("replay", "dead", transition.replay(job, 0, "auto_retry"), job)
    return found


STEPS = what_the_code_does()


def _writes_an_event(function: Callable[..., object]) -> bool:
    return "Event" in str(inspect.signature(function).return_annotation)


def test_every_transition_of_the_code_was_tried():
    functions = {name for name, value in vars(transition).items() if callable(value) and not name.startswith("_")}
    own = {name: vars(transition)[name] for name in functions}
    ours = {name for name, one in own.items() if one.__module__ == transition.__name__ and _writes_an_event(one)}

    assert {name for name, *_ in STEPS} == ours
    assert {event.kind for _, _, event, _, _ in STEPS} == set(Kind)


@pytest.mark.parametrize("step", STEPS, ids=lambda step: f"{step[1] or 'nothing'}-{step[2].kind}-{step[2].reason}")
def test_every_transition_of_the_code_is_drawn(step):
    _, before, event, job, gone = step
    reason = event.reason if event.reason in ("ttl_expired", "dependency_failed", "auto_retry") else None

    assert drawn(event.kind, before, "" if gone else job.state.value, reason)


def test_no_arrow_is_drawn_that_the_code_does_not_go():
    possible = {(event.kind.value, before, "" if gone else job.state.value) for _, before, event, job, gone in STEPS}
    ends = {"archived", "unarchived", "evicted"}  # drawn at the region of all that is finished, once for three states
    invented = [
        (arrow.name, kind, source, target)
        for arrow in arrows()
        for kind in arrow.events
        for source in (arrow.source or {""})
        for target in (arrow.target or {""})
        if (kind, source, target) not in possible and kind not in ends
    ]

    assert invented == []


@pytest.mark.parametrize(
    "label",
    [
        *("enqueue", "claim", "cancel", "unblock", "reclaim", "replay", "auto-retry", "archive", "unarchive"),
        *("prune", "evict", "stale settle: LOST", "bury dependency_failed", "bury ttl_expired"),
        *(f"settle: {verb}" for verb in Verb),
    ],
)
def test_every_transition_is_named_in_the_picture(label):
    assert any(label in arrow.label for arrow in arrows())


def test_states_and_derived_words_are_drawn():
    states = {group.get("data-state") for group in PICTURE.iter(f"{SVG}g")} - {None}
    derived = {group.get("data-word") for group in PICTURE.iter(f"{SVG}g")} - {None}

    assert states == {state.value for state in State}
    assert derived == set(get_args(Word)) - states


def test_the_page_lists_every_event():
    table = PAGE.partition("## Every transition")[2].partition("\n## ")[0]

    assert {kind.value for kind in Kind} <= set(re.findall(r"`(\w+)`", table))


def test_the_picture_is_legible_in_the_dark():
    style = "".join(the(PICTURE.find(f"{SVG}style")).itertext())
    light, _, dark = style.partition("prefers-color-scheme: dark")
    coloured = {name for name, rest in re.findall(r"\.([\w-]+) \{([^}]*)\}", light) if "#" in rest}

    assert {"paper", "ink", "line"} <= coloured
    assert coloured - set(re.findall(r"\.([\w-]+)", dark)) == set()
