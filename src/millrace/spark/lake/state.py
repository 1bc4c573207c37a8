"""The state of a lake after a take. It is stored in the commit that adds the take's events to the table `events`."""

from __future__ import annotations

import msgspec

VERSION = 2  # incremented when an older Millrace would misread the lake; not for new fields and columns


class LakeGap(msgspec.Struct, frozen=True):
    """Events that retention removed before they were copied."""

    after: str
    until: str
    lost: int
    take: int


class LakeState(msgspec.Struct, frozen=True, omit_defaults=True):
    """`cursor` is the position up to which events were copied. `whole` says whether the first take started at the
    store's first event. `taken` is the total number of copied events. `by` names the process that made the take.
    """

    take: int
    at: int
    store: str
    cursor: str
    whole: bool = True
    taken: int = 0
    gaps: tuple[LakeGap, ...] = ()
    by: str = ""
    version: int = VERSION


class StateVersion(msgspec.Struct, frozen=True):
    """The field that the states of every version have. A reader checks it first, and refuses a newer format."""

    take: int
    version: int = VERSION
