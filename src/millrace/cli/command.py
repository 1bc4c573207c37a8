"""One command: its parameters, the options that all commands share, and how its end becomes an exit code.

A command is an async function that takes the session first and answers an exit code. A parameter whose type is a
dataclass stands for the options that are its fields, so that commands which filter jobs share one list of filters.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import sys
from collections.abc import Awaitable, Callable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Annotated, Any, get_type_hints

import typer

from millrace.cli import exits
from millrace.cli.advice import as_typed
from millrace.cli.output import Output
from millrace.cli.session import Session
from millrace.cli.text import safe_block
from millrace.domain.errors import QueueError

Command = Callable[..., Awaitable[int]]


@dataclass
class Common:
    """What every command takes, before its name or after it."""

    url: Annotated[
        str | None, typer.Option("--url", help="The store, e.g. sqlite:///jobs.db (MILLRACE_URL).", metavar="URL")
    ] = None
    app: Annotated[
        str | None, typer.Option("--app", help="Your app, as module:name (MILLRACE_APP).", metavar="MODULE:NAME")
    ] = None
    json: Annotated[bool, typer.Option("--json", help="Write JSON to stdout.")] = False


def as_command(function: Command) -> Callable[..., None]:
    """What typer registers for `function`: its parameters and the common ones, all on one level."""
    hints = get_type_hints(function, include_extras=True)
    bundles: dict[str, type[Any]] = {"": Common}
    flat: list[inspect.Parameter] = []
    for name, parameter in list(inspect.signature(function).parameters.items())[1:]:
        if is_dataclass(hints[name]) and isinstance(hints[name], type):
            bundles[name] = hints[name]
            flat += _options(hints[name])
        else:
            flat.append(_keyword(name, hints[name], parameter.default))
    flat += _options(Common)

    def run(**given: Any) -> None:
        context = given.pop("_context")
        parts = {
            name: kind(**{field.name: given.pop(field.name) for field in fields(kind)})
            for name, kind in bundles.items()
        }
        common = parts.pop("")
        raise typer.Exit(_ended(function, _merged(common, context.obj), {**given, **parts}))

    flat.insert(0, _keyword("_context", typer.Context, inspect.Parameter.empty))
    run.__name__ = function.__name__
    run.__doc__ = function.__doc__
    vars(run)["__signature__"] = inspect.Signature(flat)
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in flat}
    return run


def _options(kind: type[Any]) -> list[inspect.Parameter]:
    hints = get_type_hints(kind, include_extras=True)
    return [
        _keyword(field.name, hints[field.name], None if field.default is MISSING else field.default)
        for field in fields(kind)
    ]


def _keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


def _merged(after: Common, before: Common | None) -> Common:
    """What stands after the command's name wins over what stands before it."""
    if before is None:
        return after
    return Common(after.url or before.url, after.app or before.app, after.json or before.json)


def _ended(function: Command, common: Common, arguments: dict[str, Any]) -> int:
    """Run it and answer the exit code. Every way for it to go wrong ends here, in words."""
    try:
        session = Session({"url": common.url, "app": common.app}, Output(common.json))
        with asyncio.Runner(loop_factory=_loop_for(function)) as runner:
            return runner.run(_closing(function(session, **arguments)))
    except BrokenPipeError:
        return exits.PIPE_CLOSED
    except KeyboardInterrupt:
        return exits.INTERRUPTED
    except (QueueError, OSError) as error:
        return _complain(error, exits.code_of(error))
    except Exception as error:
        return _complain(error, exits.BUG)


def _loop_for(function: Command) -> Callable[[], asyncio.AbstractEventLoop] | None:
    """A server answers a quarter more requests on uvloop, where that is installed; nothing else needs it."""
    if function.__name__ != "serve" or find_spec("uvloop") is None:
        return None
    made: Callable[[], asyncio.AbstractEventLoop] = import_module("uvloop").new_event_loop
    return made


async def _closing(command: Awaitable[int]) -> int:
    return await command


def _complain(error: Exception, code: int) -> int:
    if os.environ.get("MILLRACE_TRACEBACK"):
        import traceback

        traceback.print_exception(error)
    elif code == exits.BUG:
        _tell(f"{type(error).__name__}: {error}")
        _tell("This is a defect in millrace. Please report it with what MILLRACE_TRACEBACK=1 shows.")
        return code
    _tell(as_typed(error))
    return code


def _tell(text: str) -> None:
    print(f"millrace: {safe_block(text)}", file=sys.stderr)
