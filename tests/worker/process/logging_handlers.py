"""Handlers that log like any library would, for tests that run them in processes."""

from __future__ import annotations

import logging

from millrace import JobLogFilter


def _told() -> str | None:
    record = logging.makeLogRecord({"msg": "working"})
    JobLogFilter().filter(record)
    told: str | None = vars(record)["job"]
    return told


def told_in_process() -> str | None:
    return _told()


async def told_on_a_loop_in_a_process() -> str | None:
    return _told()
