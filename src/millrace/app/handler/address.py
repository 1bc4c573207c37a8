"""The address of a task, by which a child process finds it: the module and the name of the task's function.

A program's main file cannot be imported by name, so a child runs it again under another name, as `multiprocessing` does
when it spawns a process. Such a file must start its work under `if __name__ == "__main__":`.
"""

from __future__ import annotations

import importlib
import inspect
import os
import runpy
import sys
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from millrace.domain.errors import InvalidInput

if TYPE_CHECKING:
    from millrace.app.task import Task

MAIN = "__main__"
MAIN_AGAIN = "__mp_main__"  # as in multiprocessing, so that guards written for it work here too


class HandlerAddress(msgspec.Struct, frozen=True):
    task: str
    module: str
    path: str  # of the function inside the module, e.g. "resize" or "Images.resize"
    serde: str = "json"
    batch: bool = False


class Program(msgspec.Struct, frozen=True):
    """The main program of this process: a module (`python -m`), or the path of a file, folder or archive."""

    module: str | None = None
    path: str | None = None


def refuse_unreachable(task: str, handler: Callable[..., Any]) -> None:
    """Raise InvalidInput if another process cannot find the handler by its name.

    This is called when a task with process=True is registered.
    """
    where = f"task {task!r}: process=True runs it in another process, which"
    if not inspect.isfunction(handler):
        raise InvalidInput(f"{where} finds it by its name, so it must be a function of a module, not {handler!r}")
    if "<" in handler.__qualname__:
        raise InvalidInput(
            f"{where} cannot reach {handler.__qualname__!r}: it exists only inside a function or an expression. "
            "Move it to the top of a module."
        )
    if handler.__module__ == MAIN and main_program() is None:
        raise InvalidInput(f"{where} cannot import a program that has no file (python -c, stdin, a notebook). Save it.")


def address_of(task: Task[..., Any]) -> HandlerAddress:
    """Return the address of a task. Raises InvalidInput if the address leads to a different object."""
    handler = task.handler
    batch = hasattr(task, "takes_contexts")
    address = HandlerAddress(task.name, handler.__module__, handler.__qualname__, task.options.serde, batch)
    try:
        found = _walk(sys.modules[address.module], address.path)
    except (KeyError, AttributeError):
        found = None
    options = task.options
    retries = options.retry_on is not None or options.dont_retry_on
    if found is handler and (retries or task.lifespan_factory is not None):
        what = "retry_on and dont_retry_on need" if retries else "the app's lifespan needs"
        raise InvalidInput(
            f"task {task.name!r}: with process=True, {what} the task in place of its function, because a child process "
            f"looks there for it: write @app.task(…) above {address.path!r}"
        )
    plain = found is handler and not hasattr(task, "frame")  # only the task knows the columns of a frame
    if not plain and not _is_task(found, task.name):
        raise InvalidInput(
            f"task {task.name!r}: process=True needs its function to be {address.path!r} of module "
            f"{address.module!r}, where a child process looks for it, but {found!r} is there."
        )
    return address


def main_program() -> Program | None:
    main = sys.modules[MAIN]
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name != MAIN:
        return Program(module=spec.name)
    path = getattr(main, "__file__", None)
    if path is None:
        return None
    return Program(path=os.path.abspath(path if spec is None else os.path.dirname(path)))


# ── in the child ──────────────────────────────────────────────────────────────────────────────


def run_again(program: Program) -> None:
    """Run the parent's main program again and install it as `__main__` of this process.

    The part under `if __name__ == "__main__":` does not run.
    """
    if program.module is not None:
        names = runpy.run_module(program.module, run_name=MAIN_AGAIN, alter_sys=True)
    else:
        assert program.path is not None
        names = runpy.run_path(program.path, run_name=MAIN_AGAIN)
    main = types.ModuleType(MAIN_AGAIN)
    main.__dict__.update(names)
    sys.modules[MAIN] = sys.modules[MAIN_AGAIN] = main


def find(address: HandlerAddress) -> Task[..., Any]:
    """Return the task at an address. If a plain function is there, return a new task made from the function."""
    found = _walk(importlib.import_module(address.module), address.path)
    if _is_task(found, address.task):
        task: Task[..., Any] = found
        return task
    from millrace.app.app import App

    register: Any = App().batch_task if address.batch else App().task
    made: Task[..., Any] = register(name=address.task, serde=address.serde)(found)
    return made


def _walk(module: types.ModuleType, path: str) -> Any:
    found: Any = module
    for name in path.split("."):
        found = getattr(found, name)
    return found


def _is_task(found: object, name: str) -> bool:
    return getattr(found, "name", None) == name and hasattr(found, "handler")
