"""The mark of an event, by which a cursor recognizes it."""

from __future__ import annotations

from msgspec.structs import replace

from millrace.domain.event import Event, Kind
from millrace.domain.feed import mark_of


def test_events_that_differ_only_in_their_lease_have_different_marks() -> None:
    event = Event("job", 1, 1, 2, Kind.CLAIMED, 1_000, "default", "work", "running", 1)
    marks = {mark_of(replace(event, lease=lease)) for lease in (None, "first", "second")}
    assert len(marks) == 3
