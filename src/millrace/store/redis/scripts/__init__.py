"""The Lua scripts, one per method. They are assembled from shared modules, so that each rule is in Lua only once."""

from __future__ import annotations

import hashlib
import re
from functools import cache
from importlib import resources
from typing import NamedTuple

from millrace.domain.job import Spec
from millrace.domain.settings import QueueSettings, StoreSettings, fair_period
from millrace.store.redis.decode import RARE_FIELDS
from millrace.store.redis.encode import SPEC_FIELDS

_INCLUDE = re.compile(r"^ *-- include (\S+)$", re.MULTILINE)

# Parts that are loaded when a function of their module is first called: creating all functions costs a script more time
# than a few commands, and most steps need few of them.
MODULES: dict[str, tuple[str, ...]] = {
    "T": ("events", "done", "jobs", "lines", "rows"),
    "X": ("transition",),
    "S": ("step", "ending"),
    "A": ("plan", "admission", "ahead"),
    "L": ("limits",),
    "U": ("time", "replaying"),
    "W": ("walk",),
}
# Whether a job has such a value, which is stored separately from its record.
FLAGS = ("error", "attempts", "progress", "log")
FAST_PATHS = ("claim", "settle")  # scripts that try fast_path/NAME.lua first, before anything else is loaded
# The caller tries these first, in a call of their own. They need no modules, only these parts.
STANDALONE = {
    "fast_path/enqueue_one": (),
    "fast_path/enqueue": ("lib/open", "lib/write", "lib/fast_path", "fast_path/links"),
}
METHODS = (
    *STANDALONE,
    "enqueue",
    "claim",
    "settle",
    "extend",
    "reclaim",
    "cancel",
    "replay",
    "archive",
    "delete",
    "control_queue",
    "control_task",
    "control_store",
    "import_store",
    "import_records",
    "export_jobs",
    "export_past",
    "export_keys",
    "drain",
    "obliterate",
    "upkeep_time",
    "upkeep_queue",
    "upkeep_rest",
    "upkeep_past",
    "advance",
    "due_schedules",
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
    """Return the script with this name: the common start, its fast path if it has one, the shared modules, and its own
    file.
    """
    if name in STANDALONE:
        parts = [_text(part) for part in STANDALONE[name]]
    else:
        parts = [_text("lib/open"), _text("lib/write"), _text("lib/fence")]
        if name in FAST_PATHS:
            parts += [_text("lib/fast_path"), _text("fast_path/lines"), _text(f"fast_path/{name}")]
        parts.append(_modules())
    source = "\n".join([*parts, _text(name)])
    return Script(name, source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest())


@cache
def _modules() -> str:
    parts = [_defaults(), _fields(), _text("lib/tables"), _text("lib/modules")]
    for module, pieces in MODULES.items():
        loaders = [f"function()\n{_text(f'lib/{piece}')}\nend" for piece in pieces]
        parts.append(f"in_pieces({module}, {', '.join(loaders)})")
    return "\n".join(parts)


@cache
def _text(name: str) -> str:
    """Return a file, with the files that it includes in place of the lines that name them.

    A part that is included inside of an `if` is only run, and its functions are only created, when they are needed.
    """
    source = resources.files(__name__).joinpath(f"{name}.lua").read_text(encoding="utf-8")
    return _INCLUDE.sub(lambda found: _text(found[1]), source)


def _defaults() -> str:
    """Return Lua code that defines defaults: all settings of a queue, and a few options of specs and of the store."""
    queue = QueueSettings()
    settings = {name: getattr(queue, name) for name in queue.__struct_fields__}
    settings["fair_period"] = fair_period(queue)
    spec = Spec("", "")
    numbers = {"lease": spec.lease, "keep_result": spec.keep_result, "keep_events": StoreSettings().keep_events}
    return f"local DEFAULT_SETTINGS = {_lua(settings)}\nlocal SPEC = {_lua(numbers)}"


def _fields() -> str:
    """Return Lua code that defines the rarely changed fields of a job, with their defaults, and reads a spec from a
    list.
    """
    rare = RARE_FIELDS | dict.fromkeys(FLAGS, False)
    at_first = {name: default for name, default in rare.items() if default is not None}
    changed = " or ".join(
        f"job.{name} ~= 0" if default == 0 and default is not False else f"job.{name}" for name, default in rare.items()
    )
    spec = ", ".join(f"spec.{name}" for name in (*SPEC_FIELDS, "after", "body"))
    return f"""local RARE_DEFAULTS = {_lua(at_first)}
local RARE_FIELDS = {_lua(tuple(rare))}
local function has_rare(job)
  return {changed}
end
local function spec_from(item)
  local spec = {{}}
  {spec} = unpack(item, 1, {len(SPEC_FIELDS) + 2})
  return spec
end"""


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
