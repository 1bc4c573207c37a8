"""Instants are stored as integer milliseconds of the store's clock, and shown to people as `datetime`s in UTC."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


def as_datetime(at: int) -> datetime:
    """Return a stored instant as an aware datetime in UTC."""
    return EPOCH + at * _MILLISECOND


def as_milliseconds(when: datetime) -> int:
    """Return an aware datetime as a stored instant."""
    return (when - EPOCH) // _MILLISECOND
