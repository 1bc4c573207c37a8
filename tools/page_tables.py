"""Writes the tables of the page in a bucket, which has no server to ask: fields, defaults and names, as JavaScript.

    python -m tools.page_tables

They come from the structs that the store writes (`domain/`) and that the API shows (`views/`), so a new field needs no
change in JavaScript. tests/web/test_page_tables.py compares the file with what this program would write.
"""

from __future__ import annotations

import dataclasses
import json
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec

from millrace.app.telemetry.redaction import COUNTS, USUAL
from millrace.domain.event import Event
from millrace.domain.job import ALIASES, Job, Spec
from millrace.domain.request import WorkerInfo
from millrace.domain.schedule import Schedule
from millrace.domain.settings import QueueSettings
from millrace.views.bulk import ACTIONS
from millrace.views.job_view import Instant, JobSummary, JobView, Seconds
from millrace.views.queue_view import SettingsView
from millrace.views.timeline import EventView, Facts
from millrace.views.worker_view import ScheduleView, WorkerView
from millrace.web.routes.server import SUMS

FILE = Path(__file__).resolve().parent.parent / "src/millrace/web/static/drivers/s3/tables.js"
HEAD = """\
// Fields, defaults and names, exported from the Python code: python -m tools.page_tables. Do not edit.
//
// A record leaves out fields that have their default. A view maps each of its fields to how it is shown.
"""
BUCKET_ACTIONS = ("replay", "archive", "unarchive")  # what a page does without a server


def defaults(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """Defaults of a stored struct. Bytes and nested structs are read in another way."""
    found: dict[str, Any] = {}
    for field in msgspec.structs.fields(kind):
        if field.default is not msgspec.NODEFAULT and not isinstance(field.default, bytes | msgspec.Struct):
            found[field.encode_name] = msgspec.to_builtins(field.default)
    return found


def view(kind: type[msgspec.Struct]) -> dict[str, str]:
    hints = get_type_hints(kind, include_extras=True)
    return {field.encode_name: _shown_as(hints[field.name]) for field in msgspec.structs.fields(kind)}


def _shown_as(hint: Any) -> str:
    choices = (hint, *get_args(hint))
    return "instant" if Instant in choices else "seconds" if Seconds in choices else "value"


def tables() -> dict[str, Any]:
    return {
        "SPEC": defaults(Spec),
        "JOB": defaults(Job),
        "EVENT": defaults(Event),
        "WORKER": defaults(WorkerInfo),
        "SCHEDULE": defaults(Schedule),
        "SETTINGS": defaults(QueueSettings),
        "JOB_SUMMARY": view(JobSummary),
        "JOB_DETAILS": {name: shown for name, shown in view(JobView).items() if name not in view(JobSummary)},
        "EVENT_VIEW": view(EventView),
        "WORKER_VIEW": view(WorkerView),
        "SCHEDULE_VIEW": view(ScheduleView),
        "SETTINGS_VIEW": view(SettingsView),
        "FACTS": [field.name for field in dataclasses.fields(Facts)],
        "SUMS": sorted(SUMS),
        "ALIASES": ALIASES,
        "USUAL_STATES": {verb: ACTIONS[verb].usual for verb in BUCKET_ACTIONS},
        "PHRASES": USUAL,
        "COUNTS": COUNTS,
    }


def text() -> str:
    return "\n".join([HEAD, *(line for name, table in tables().items() for line in _written(name, table))]) + "\n"


def _written(name: str, table: Any) -> Iterator[str]:
    named = isinstance(table, dict)
    parts = [f"{key}: {json.dumps(value)}" for key, value in table.items()] if named else map(json.dumps, table)
    opening, closing = "{}" if named else "[]"
    yield f"export const {name} = {opening}"
    yield from _wrapped(parts)
    yield f"{closing};"


def _wrapped(parts: Iterable[str]) -> list[str]:
    """Lines of at most 120 characters. Spaces inside a part do not break."""
    joined = ", ".join(part.replace(" ", "\0") for part in parts) + ","
    lines = textwrap.wrap(joined, 120, initial_indent="  ", subsequent_indent="  ", break_long_words=False)
    return [line.replace("\0", " ") for line in lines]


if __name__ == "__main__":
    FILE.write_text(text(), "utf-8")
