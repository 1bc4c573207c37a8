"""How Spark's processes find an app: they import its module, and take the app from it by name."""

from __future__ import annotations

import os
import socket
import sys
from importlib import import_module
from typing import Any

import msgspec

from millrace.app.app import App
from millrace.domain.errors import InvalidInput

_MAINS = ("__main__", "__mp_main__")
HOW = (
    "Install it where executors run, or send it along: spark-submit --py-files, spark.addArtifacts(…, pyfile=True), or "
    "an archive of libraries (docs/spark-cluster.md)"
)


class AppAddress(msgspec.Struct, frozen=True):
    """The `module` and `name` under which other processes find an app. `modules` lists the modules of its handlers; a
    process must import them, because tasks are registered on import. `path` is the driver's sys.path.
    """

    module: str
    name: str
    modules: tuple[str, ...] = ()
    path: tuple[str, ...] = ()


def address_of(app: App, given: str | None = None) -> AppAddress:
    """Return the address of an app. `given` names it as `module:name`; without `given`, the imported modules are
    searched for the app. Raises InvalidInput if `given` is malformed, or if no importable module holds the app.
    """
    if given is not None:
        module, _, name = given.partition(":")
        if not name or not all(part.isidentifier() for part in [*module.split("."), *name.split(".")]):
            raise InvalidInput(f"{given!r} does not name an app. Write module:name, e.g. address='shop.tasks:app'")
    else:
        module, name = _found(app)
    handlers = {task.handler.__module__ for task in app.tasks.values()} | {module}
    modules = tuple(sorted({_importable(one) for one in handlers}))
    path = tuple(os.path.abspath(folder) for folder in sys.path)
    return AppAddress(_importable(module), name, modules, path)


def _found(app: App) -> tuple[str, str]:
    places = [
        (module, name)
        for module, held in list(sys.modules.items())
        for name, value in list(getattr(held, "__dict__", {}).items())
        if value is app and name.isidentifier()
    ]
    if not places:
        raise InvalidInput(
            "no imported module holds this app under a name, so executors cannot find it. Keep it at the top of a "
            "module (app = App(…)), or name it: app.on_spark(spark, address='shop.tasks:app')"
        )
    homes = {task.handler.__module__ for task in app.tasks.values()}
    return min(places, key=lambda place: (place[0] in _MAINS, place[0] not in homes, place))


def _importable(module: str) -> str:
    """Return the name by which other processes import a module. Raises InvalidInput for a main file that cannot be
    imported.
    """
    if module not in _MAINS:
        return module
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is None or spec.name in _MAINS:
        raise InvalidInput(
            "the app or one of its tasks lives in the program's main file, which executors cannot import. Move it to a "
            "module of its own, and import it from there"
        )
    found: str = spec.name
    return found.removesuffix(".__main__") if found.endswith(".__main__") else found


# ── on an executor ────────────────────────────────────────────────────────────────────────────


def load(address: AppAddress, tasks: tuple[str, ...]) -> App:
    """Import the app and return it. Raises InvalidInput if a module, the app or one of these tasks is missing on this
    machine.
    """
    for folder in address.path:  # with a shared disk, the driver's modules are available here too
        if folder not in sys.path and os.path.exists(folder):
            sys.path.append(folder)
    found: Any = None
    for module in (*address.modules, address.module):
        found = _module(module)
    for part in address.name.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, App):
        where = f"{address.module}:{address.name} on {socket.gethostname()}"
        raise InvalidInput(f"{where} is {found!r}, not a Millrace App")
    if missing := sorted(set(tasks) - found.tasks.keys()):
        raise InvalidInput(
            f"{address.module}:{address.name} on {socket.gethostname()} does not know the tasks {', '.join(missing)}: "
            f"it is another version of the code. {HOW}"
        )
    return found


def _module(name: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise InvalidInput(f"the module {error.name!r} cannot be imported on {socket.gethostname()}. {HOW}") from error
    except (Exception, SystemExit) as error:
        where = f"importing {name!r} on {socket.gethostname()} failed"
        raise InvalidInput(f"{where}: {type(error).__name__}: {error}") from error
