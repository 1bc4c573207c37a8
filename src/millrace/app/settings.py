"""Settings from outside the code: a command line flag, an environment variable, or pyproject.toml, in this order.

Each value is kept with its origin, and `millrace config` shows both. An unknown name in pyproject.toml is an error; an
unknown MILLRACE_ variable is only reported, because the environment is shared with other programs.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from millrace.app.duration import milliseconds
from millrace.app.telemetry.log_levels import log_filter
from millrace.domain.errors import InvalidInput
from millrace.domain.rules.check import check_name
from millrace.store.variables import OBJECT_SETTINGS

Origin = Literal["flag", "environment", "pyproject.toml", "default"]
PREFIX = "MILLRACE_"
SECRET = re.compile(r"pass|secret|token|key|credential", re.IGNORECASE)
HIDDEN = "***"
ITS_BUCKET = "s3:///"  # a URL that refers to the bucket of the setting `s3_bucket`


@dataclass(frozen=True)
class Setting:
    """One setting. The function `read` parses and validates its value."""

    name: str
    default: Any
    help: str
    read: Callable[[str, object], Any]
    aliases: tuple[str, ...] = ()  # other variables that are read if ours is not set
    of_object_stores: bool = False
    secret: bool = False

    @property
    def env(self) -> str:
        return PREFIX + self.name.upper()


@dataclass(frozen=True)
class Value:
    value: Any
    origin: Origin
    where: str  # the flag, the variable or the file


@dataclass
class ProgramSettings:
    """The values of all settings, with their origins. `project` is the folder of the pyproject.toml, if one is used."""

    values: dict[str, Value] = field(default_factory=dict[str, Value])
    project: Path | None = None
    strangers: tuple[str, ...] = ()  # unknown variables whose names begin with MILLRACE_

    def __getitem__(self, name: str) -> Any:
        return self.values[name].value

    def origin(self, name: str) -> Origin:
        return self.values[name].origin

    def as_variables(self, *origins: Origin) -> dict[str, str]:
        """Return the settings that have one of these origins, as a dict of environment variables."""
        return {
            SETTINGS[name].env: ",".join(found.value) if isinstance(found.value, tuple) else str(found.value)
            for name, found in self.values.items()
            if found.origin in origins
        }


def load_settings(
    flags: Mapping[str, Any], environ: Mapping[str, str] | None = None, folder: Path | None = None
) -> ProgramSettings:
    """Return all settings. `flags` has the values from the command line; None means that a flag was not passed.

    Raises InvalidInput for an invalid value.
    """
    environ = os.environ if environ is None else environ
    file, written = _pyproject(Path.cwd() if folder is None else folder)
    settings = ProgramSettings(project=None if file is None else file.parent, strangers=_strangers(environ))
    for name, setting in SETTINGS.items():
        settings.values[name] = _value(setting, flags, environ, file, written)
    bucket = settings.values["s3_bucket"]
    if bucket.value is not None and settings["url"] is None and settings["app"] is None:
        settings.values["url"] = Value(ITS_BUCKET, bucket.origin, bucket.where)
    return settings


def masked(url: str) -> str:
    """Return a store's URL for display, with the password and secret options replaced by ***."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        return url
    login, at, rest = rest.rpartition("@")  # the last one: an unescaped password may contain @
    user, colon, _ = login.partition(":")
    place, question, query = rest.partition("?")
    options = [
        f"{name}={HIDDEN}" if equals and SECRET.search(name) else f"{name}{equals}{value}"
        for name, equals, value in (option.partition("=") for option in query.split("&"))
    ]
    return f"{scheme}://{user}{colon and colon + HIDDEN}{at}{place}{question}{'&'.join(options)}"


def _value(
    setting: Setting, flags: Mapping[str, Any], environ: Mapping[str, str], file: Path | None, written: dict[str, Any]
) -> Value:
    flag = "--" + setting.name.replace("_", "-")
    if flags.get(setting.name) is not None:
        return Value(setting.read(flag, flags[setting.name]), "flag", flag)
    for variable in (setting.env, *setting.aliases):
        if environ.get(variable):  # an empty variable counts as not set
            return Value(setting.read(variable, environ[variable]), "environment", variable)
    if file is not None and setting.name in written:
        where = f"{setting.name} in {file.name}"
        value = setting.read(where, written[setting.name])
        return Value(_anchored(setting, value, file.parent), "pyproject.toml", str(file))
    return Value(setting.default, "default", "")


def _anchored(setting: Setting, value: Any, folder: Path) -> Any:
    """Return the value. A relative path in an SQLite URL is resolved against `folder`, which has the pyproject.toml."""
    if setting.name != "url" or not str(value).lower().startswith("sqlite:///"):
        return value
    path = str(value)[len("sqlite:///") :]
    if path.startswith("/") or folder == Path.cwd():
        return value
    return f"sqlite:///{quote(str(folder))}/{path}"


def _pyproject(folder: Path) -> tuple[Path | None, dict[str, Any]]:
    """Return (path, table) of the nearest pyproject.toml that has a [tool.millrace] table, or (None, {}).

    The search begins in `folder` and continues in its parents. Raises InvalidInput if the file or the table is invalid.
    """
    for place in (folder, *folder.parents):
        file = place / "pyproject.toml"
        try:
            text = file.read_text("utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        if "tool.millrace" not in text and "millrace" not in text:
            continue
        try:
            table = tomllib.loads(text).get("tool", {}).get("millrace")
        except (tomllib.TOMLDecodeError, AttributeError) as error:
            raise InvalidInput(f"{file} cannot be read: {error}. Correct it, or move it away.") from None
        if table is None:
            continue
        if not isinstance(table, dict):
            raise InvalidInput(f"tool.millrace in {file} must be a table: write [tool.millrace] and settings below it")
        for name in table:
            if name not in SETTINGS:
                raise InvalidInput(f"[tool.millrace] in {file} has no setting {name!r}. {_meant(name)}")
        return file, table
    return None, {}


def _meant(name: str) -> str:
    close = difflib.get_close_matches(name.replace("-", "_"), SETTINGS, n=1)
    return f"Did you mean {close[0]!r}?" if close else f"Known are: {', '.join(SETTINGS)}."


def _strangers(environ: Mapping[str, str]) -> tuple[str, ...]:
    known = {name for setting in SETTINGS.values() for name in (setting.env, *setting.aliases)} | {PREFIX + "TRACEBACK"}
    return tuple(sorted(name for name in environ if name.startswith(PREFIX) and name not in known))


# ── how each is read ──────────────────────────────────────────────────────────────────────────


def _text(where: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise InvalidInput(f"{where} must be text, not {value!r}")
    return value.strip()


def _texts(where: str, value: object) -> tuple[str, ...]:
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, list | tuple) or not parts:
        raise InvalidInput(f"{where} must be texts with commas between them, or a list of texts; not {value!r}")
    return tuple(_text(where, part) for part in parts)


def _names(kind: str) -> Callable[[str, object], tuple[str, ...]]:
    def read(where: str, value: object) -> tuple[str, ...]:
        parts = value.split(",") if isinstance(value, str) else value
        if not isinstance(parts, list | tuple) or not parts:
            raise InvalidInput(f"{where} must be names with commas between them, or a list of names; not {value!r}")
        names = tuple(name.strip() if isinstance(name, str) else name for name in parts)
        for name in names:
            check_name(kind, name)
        return names

    return read


def _count(most: int) -> Callable[[str, object], int]:
    def read(where: str, value: object) -> int:
        text = str(value).strip()
        if isinstance(value, bool) or not text.isascii() or not text.isdigit() or len(text) > 9:
            raise InvalidInput(f"{where} must be a whole number from 1 to {most:,}, not {value!r}")
        if not 1 <= int(text) <= most:
            raise InvalidInput(f"{where} must be from 1 to {most:,}, not {text}")
        return int(text)

    return read


def _duration(where: str, value: object) -> float:
    """Return a duration in seconds, from a value such as 25, "25", "25s" or "1m30s". Raises InvalidInput."""
    if isinstance(value, str) and re.fullmatch(r"\s*\d{1,12}(\.\d{1,6})?\s*", value):
        value = float(value)
    return milliseconds(where, value) / 1000


def _choice(*words: str) -> Callable[[str, object], str]:
    def read(where: str, value: object) -> str:
        word = str(value).strip().lower()
        if word not in words:
            raise InvalidInput(f"{where} must be one of {', '.join(words)}; not {value!r}")
        return word

    return read


_ALL = (
    Setting("url", None, "the store, e.g. sqlite:///jobs.db; by default the app's own", _text),
    Setting("app", None, "the app, as module:name, e.g. shop.tasks:app", _text),
    Setting("queues", None, "queues a worker serves; by default those of its tasks", _names("queue")),
    Setting("tasks", None, "tasks a worker takes; by default all of the app", _names("task")),
    Setting("slots", 10, "jobs a worker process runs at a time", _count(10_000)),
    Setting("processes", 1, "worker processes", _count(1_000)),
    Setting("lease", None, "lease of jobs for which neither caller nor task sets one", _duration),
    Setting("shutdown_deadline", 25.0, "how long a stopping worker waits for running jobs", _duration),
    Setting("grace", 3.0, "how long aborted handlers have to clean up", _duration),
    Setting(
        "unknown_task", "leave", "jobs of unknown tasks in a worker's queues: leave or bury", _choice("leave", "bury")
    ),
    Setting("alive_file", None, "file that a worker touches every 5 s while its event loop runs, for probes", _text),
    Setting(
        "log_level",
        "info",
        "trace, debug, info, warn, error or off; also by module: millrace.store=debug,warn",
        log_filter,
        (PREFIX + "LOG",),
    ),
    Setting("log_format", "text", "of a worker's log on stderr: text or json", _choice("text", "json")),
    Setting(
        "host", "127.0.0.1", "where the web server listens; elsewhere than on this machine it needs a token", _text
    ),
    Setting("port", 8321, "port of the web server", _count(65_535)),
    Setting("allow_hosts", None, "names that the web server is reached by, besides addresses and localhost", _texts),
    Setting("viewer_token", None, "web server token that allows viewing", _text, secret=True),
    Setting("operator_token", None, "web server token that also allows actions on jobs", _text, secret=True),
    Setting("admin_token", None, "web server token that also allows changing settings", _text, secret=True),
    Setting("redact", None, "words in names of payload fields to hide, besides the default ones", _texts),
    *(
        Setting(one.name, one.default, one.help, one.read, one.aliases, of_object_stores=True)
        for one in OBJECT_SETTINGS
    ),
)
SETTINGS: dict[str, Setting] = {setting.name: setting for setting in _ALL}
