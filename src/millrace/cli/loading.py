"""Loads an app by its name `module:name`. Errors name the line of the user's code that caused them."""

from __future__ import annotations

import os
import sys
import traceback
from importlib import import_module
from pathlib import Path
from types import ModuleType

from millrace.app.app import App
from millrace.domain.errors import InvalidInput, QueueError

HOW = "Name it as module:name, e.g. --app shop.tasks:app"


def load_app(name: str, folders: tuple[Path, ...] = ()) -> App:
    """Return the app that is named as `module:name`. For `module` alone, return the only app in that module. Raises
    InvalidInput if there is no such app.
    """
    module_name, colon, attribute = name.partition(":")
    if not all(
        part.isidentifier() for part in [*module_name.split("."), *attribute.split(".")][: None if colon else -1]
    ):
        raise InvalidInput(f"{name!r} does not name an app. {HOW}")
    for folder in (*folders, Path.cwd()):
        if str(folder) not in sys.path:
            sys.path.insert(0, str(folder))
    module = _module(module_name)
    found: object = module
    if not colon:
        return _only_app(module, module_name)
    for part in attribute.split("."):
        found = getattr(found, part, None)
        if found is None:
            others = ", ".join(_apps(module)) or "none"
            raise InvalidInput(f"module {module_name!r} has no {attribute!r}. Apps in it: {others}")
    try:
        found = _own_app(found)
    except QueueError:
        raise
    except Exception as error:  # it may import modules of tasks
        raise _failed(name, error) from error
    if not isinstance(found, App):
        raise InvalidInput(f"{name!r} is a {type(found).__name__}, not a Millrace App. {HOW}")
    return found


def _module(name: str) -> ModuleType:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            raise InvalidInput(
                f"there is no module {error.name!r} to load the app from. Python searches the working directory "
                "and its module path."
            ) from None
        raise _failed(name, error) from error
    except (Exception, SystemExit) as error:  # the user's module may raise anything on import
        raise _failed(name, error) from error


def _failed(name: str, error: BaseException) -> InvalidInput:
    """Return an error that names the failed line of the user's code. A traceback through the import system would hide
    it.
    """
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    place = ""
    if isinstance(error, SyntaxError) and error.filename:
        place = f" ({_short(error.filename)}, line {error.lineno})"
    elif len(frames) > 1:  # the first one is this file
        place = f" ({_short(frames[-1].filename)}, line {frames[-1].lineno})"
    text = str(error).strip() or "no message"
    return InvalidInput(
        f"importing {name!r} failed: {type(error).__name__}: {text}{place}. "
        "Fix that first; MILLRACE_TRACEBACK=1 shows the full traceback."
    )


def _only_app(module: ModuleType, name: str) -> App:
    apps = _apps(module)
    if len(apps) == 1:
        return next(iter(apps.values()))
    if not apps:
        raise InvalidInput(f"module {name!r} has no Millrace App. {HOW}")
    raise InvalidInput(f"module {name!r} has several apps: {', '.join(apps)}. Name one, e.g. {name}:{min(apps)}")


def _apps(module: ModuleType) -> dict[str, App]:
    found = {name: _own_app(value) for name, value in vars(module).items()}
    return {name: value for name, value in found.items() if isinstance(value, App)}


def _own_app(value: object) -> object:
    """Return the app of an object that has one as its attribute `millrace`, such as an app of contrib.celery."""
    if isinstance(value, type | ModuleType) or not hasattr(type(value), "millrace"):
        return value
    own: object = getattr(value, "millrace")  # noqa: B009  # its type is not known here
    return own


def _short(filename: str) -> str:
    inside = os.path.relpath(filename)
    return filename if inside.startswith("..") else inside
