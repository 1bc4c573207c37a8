"""The scripts, one per method: put together from shared pieces, so that a rule is said once in Lua, too."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import resources
from typing import NamedTuple

from millrace.domain.job import Spec
from millrace.domain.settings import QueueSettings, StoreSettings, fair_period

_TABLES = ("open", "tables", "events", "jobs", "lines", "done")
_RULES = (*_TABLES, "transition", "step", "admission", "ahead")
_TIME = (*_RULES, "time")
_READ = ("open", "tables", "events", "jobs", "lines", "rows")

PIECES: dict[str, tuple[str, ...]] = {
    "enqueue_plain": _TABLES,
    "enqueue": _RULES,
    "claim": (*_TIME, "limits", "rows"),
    "settle": _RULES,
    "extend": _TABLES,
    "reclaim": (*_TIME, "rows"),
    "cancel": _RULES,
    "replay": (*_TIME, "replaying"),
    "archive": (*_TIME, "replaying"),
    "control_queue": _RULES,
    "control_task": _RULES,
    "drain": (*_RULES, "walk"),
    "obliterate": (*_RULES, "walk"),
    "upkeep_time": (*_TIME, "walk"),
    "upkeep_queue": (*_TIME, "replaying"),
    "upkeep_rest": (*_TIME, "replaying", "walk"),
    "upkeep_past": _TABLES,
    "advance": _RULES,
    "beat": ("open", "tables"),
    "get": _READ,
    "find": (*_READ, "walk"),
    "bounds": ("open", "tables", "walk"),
    "count": ("open", "tables", "events", "jobs", "walk"),
    "position": _RULES,
    "lanes": ("open", "tables", "events", "jobs", "lines"),
    "history": ("open", "tables", "events", "jobs", "lines"),
    "feed": ("open", "tables", "events"),
    "cursor_before": ("open", "tables", "events"),
    "sleep": ("open", "tables", "events", "jobs", "lines", "limits"),
    "wake_up": _TABLES,
    "watch": ("open", "tables"),
}


class Script(NamedTuple):
    name: str
    source: str
    sha: str


@cache
def script(name: str) -> Script:
    parts = [_defaults(), *(_text(f"lib/{piece}") for piece in PIECES[name]), _text(name)]
    source = "\n".join(parts)
    return Script(name, source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest())


@cache
def _text(name: str) -> str:
    return resources.files(__name__).joinpath(f"{name}.lua").read_text(encoding="utf-8")


def _defaults() -> str:
    """What a queue and a hook are when nobody has said anything: the defaults of Python, as Lua."""
    plain = QueueSettings()
    settings = {name: getattr(plain, name) for name in plain.__struct_fields__}
    settings["fair_period"] = fair_period(plain)
    spec = Spec("", "")
    numbers = {"lease": spec.lease, "keep_result": spec.keep_result, "keep_events": StoreSettings().keep_events}
    return f"local DEFAULT_SETTINGS = {_lua(settings)}\nlocal SPEC = {_lua(numbers)}"


def _lua(value: object) -> str:
    if value is None:
        return "nil"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{name} = {_lua(part)}" for name, part in value.items()) + " }"
    if isinstance(value, tuple | list):
        return "{ " + ", ".join(map(_lua, value)) + " }"
    return f"'{value}'" if isinstance(value, str) else repr(value)
