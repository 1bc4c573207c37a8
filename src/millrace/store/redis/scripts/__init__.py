"""The scripts, one per method: put together from shared pieces, so that a rule is said once in Lua, too."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import resources
from typing import NamedTuple

from millrace.domain.job import Spec
from millrace.domain.settings import QueueSettings, StoreSettings, fair_period

# Pieces that are read in when a function of their module is first called: putting functions together costs a script
# more time than a few commands do, and most steps need few of them.
MODULES: dict[str, tuple[str, ...]] = {
    "T": ("events", "done", "jobs", "lines", "rows"),
    "X": ("transition",),
    "S": ("step", "ending"),
    "A": ("plan", "admission", "ahead"),
    "L": ("limits",),
    "U": ("time", "replaying"),
    "W": ("walk",),
}
SHORTCUTS = ("claim", "settle")  # what is usual is tried first, before anything else is read in
ALONE = ("enqueue_plain",)  # needs none of the pieces
METHODS = (
    "enqueue_plain",
    "enqueue",
    "claim",
    "settle",
    "extend",
    "reclaim",
    "cancel",
    "replay",
    "archive",
    "control_queue",
    "control_task",
    "drain",
    "obliterate",
    "upkeep_time",
    "upkeep_queue",
    "upkeep_rest",
    "upkeep_past",
    "advance",
    "beat",
    "get",
    "find",
    "bounds",
    "count",
    "position",
    "lanes",
    "history",
    "feed",
    "cursor_before",
    "sleep",
    "wake_up",
    "watch",
)


class Script(NamedTuple):
    name: str
    source: str
    sha: str


@cache
def script(name: str) -> Script:
    begin = [_text("lib/open"), _text("lib/write")]
    shortcut = [_text(f"plain/{name}")] if name in SHORTCUTS else []
    library = [] if name in ALONE else [_library()]
    source = "\n".join([*begin, *shortcut, *library, _text(name)])
    return Script(name, source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest())


@cache
def _library() -> str:
    parts = [_defaults(), _text("lib/tables"), _text("lib/modules")]
    for module, pieces in MODULES.items():
        loaders = [f"function()\n{_text(f'lib/{piece}')}\nend" for piece in pieces]
        parts.append(f"in_pieces({module}, {', '.join(loaders)})")
    return "\n".join(parts)


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
