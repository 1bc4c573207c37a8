"""Retention: whole days of a table leave the lake. The files go later, when nobody can be reading them any more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from millrace.domain.errors import InvalidInput
from millrace.spark.lake.manifest import Manifest
from millrace.spark.lake.place import Place
from millrace.spark.lake.tables import BY_DAY


@dataclass(frozen=True)
class Retained:
    manifest: Manifest
    files: int = 0
    rows: int = 0
    days: int = 0


def retain(place: Place, keep: Mapping[str, int], now: int) -> Retained | None:
    """Drop the days of each table that ended more than so many milliseconds ago. None: there is no lake yet."""
    unknown = sorted(set(keep) - set(BY_DAY))
    if unknown:
        raise InvalidInput(f"{unknown[0]} is not kept by days; retention is for {', '.join(BY_DAY)}")
    with place.writing() as newest:
        if newest is None:
            return None
        return _retained(place, newest, {name: _first_day(now - length) for name, length in keep.items()})


def _retained(place: Place, newest: Manifest, first: Mapping[str, str]) -> Retained:
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
    """The day of an instant: it is kept, because a part of it is younger."""
    return datetime.fromtimestamp(at / 1000, UTC).date().isoformat()
