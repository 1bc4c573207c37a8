"""Retention: drops whole days of a table. The files are deleted later, after a grace period for readers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from millrace.domain.errors import InvalidInput
from millrace.spark.lake.manifest import LakeManifest
from millrace.spark.lake.place import LakePlace
from millrace.spark.lake.tables import BY_DAY


@dataclass(frozen=True)
class Retained:
    manifest: LakeManifest
    files: int = 0
    rows: int = 0
    days: int = 0


def retain(place: LakePlace, keep: Mapping[str, int], now: int) -> Retained | None:
    """Drop the days of each table that ended more than `keep` milliseconds ago. Return None if there is no lake yet.
    Raises InvalidInput for a table that is not divided by days.
    """
    unknown = sorted(set(keep) - set(BY_DAY))
    if unknown:
        raise InvalidInput(f"{unknown[0]} is not kept by days; retention is for {', '.join(BY_DAY)}")
    with place.writing() as newest:
        if newest is None:
            return None
        return _retained(place, newest, {name: _first_day(now - length) for name, length in keep.items()})


def _retained(place: LakePlace, newest: LakeManifest, first: Mapping[str, str]) -> Retained:
    gone = [file for name, day in first.items() for file in newest.of(name) if file.day is not None and file.day < day]
    if not gone:
        return Retained(newest)
    paths = {file.path for file in gone}
    files = {name: tuple(file for file in kept if file.path not in paths) for name, kept in newest.files.items()}
    dropped = {**newest.dropped, **{name: max(day, newest.dropped.get(name, "")) for name, day in first.items()}}
    manifest = newest.following("retain", files, dropped=dropped)
    place.publish(manifest)
    return Retained(manifest, len(gone), sum(file.rows for file in gone), len({file.day for file in gone}))


def _first_day(at: int) -> str:
    """Return the first day to keep: the day that contains the instant. A part of this day is within the retention
    period.
    """
    return datetime.fromtimestamp(at / 1000, UTC).date().isoformat()
