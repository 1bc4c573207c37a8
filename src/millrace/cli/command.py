"""Turns an async function into a command. It derives the options from the parameters, adds the options that all
commands share, and sets the exit code.

The first parameter of the function is the session, and its return value is the exit code. A parameter whose type is a
dataclass becomes one option per field. So all commands that filter jobs share one dataclass of filter options.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import sys
from collections.abc import Awaitable, Callable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from importlib.util import find_spec
from typing import Annotated, Any, get_type_hints

import typer

from millrace.cli import exits
from millrace.cli.advice import as_typed
from millrace.cli.output import Output
from millrace.cli.session import CommandSession
from millrace.cli.text import safe_block
from millrace.domain.errors import QueueError

Command = Callable[..., Awaitable[int]]
ON_UVLOOP = frozenset({"serve", "worker"})


@dataclass
class Common:
    """Options of every command. They can be given before or after the command's name."""

    url: Annotated[
        str | None, typer.Option("--url", help="The store, e.g. sqlite:///jobs.db (MILLRACE_URL).", metavar="URL")
    ] = None
    app: Annotated[
        str | None, typer.Option("--app", help="Your app, as module:name (MILLRACE_APP).", metavar="MODULE:NAME")
    ] = None
    json: Annotated[bool, typer.Option("--json", help="Write JSON to stdout.")] = False


def as_command(function: Command) -> Callable[..., None]:
    """Return a function for typer that runs `function`. It has the parameters of `function` and the common options. A
    dataclass parameter is replaced by one parameter per field.
    """
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

    def run(**values: Any) -> None:
        context = values.pop("_context")
        parts = {
            name: kind(**{field.name: values.pop(field.name) for field in fields(kind)})
            for name, kind in bundles.items()
        }
        common = parts.pop("")
        raise typer.Exit(_run(function, _merged(common, context.obj), {**values, **parts}))

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
    """Return the common options of a command. Options after the command's name take precedence over options before
    it.
    """
    if before is None:
        return after
    return Common(after.url or before.url, after.app or before.app, after.json or before.json)


def _run(function: Command, common: Common, arguments: dict[str, Any]) -> int:
    """Run the command and return its exit code. An exception becomes a message on stderr."""
    try:
        session = CommandSession({"url": common.url, "app": common.app}, Output(common.json))
        with asyncio.Runner(loop_factory=_loop_for(function)) as runner:
            return runner.run(_awaited(function(session, **arguments)))
    except BrokenPipeError:
        return exits.PIPE_CLOSED
    except KeyboardInterrupt:
        return exits.INTERRUPTED
    except (QueueError, OSError) as error:
        return _report(error, exits.code_of(error))
    except Exception as error:
        return _report(error, exits.BUG)


def _loop_for(function: Command) -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return a factory of uvloop's loops for the commands that run for long, if uvloop is installed. Else return None,
    which means asyncio's own loop. MILLRACE_UVLOOP=0 turns uvloop off.
    """
    if function.__name__ not in ON_UVLOOP or os.environ.get("MILLRACE_UVLOOP") == "0" or find_spec("uvloop") is None:
        return None
    from millrace.cli.fast_loop import FastLoop

    return FastLoop


async def _awaited(command: Awaitable[int]) -> int:
    return await command


def _report(error: Exception, code: int) -> int:
    if os.environ.get("MILLRACE_TRACEBACK"):
        import traceback

        traceback.print_exception(error)
    elif code == exits.BUG:
        _print_error(f"{type(error).__name__}: {error}")
        _print_error("This is a bug in Millrace. Please report it with the output of MILLRACE_TRACEBACK=1.")
        return code
    _print_error(as_typed(error))
    return code


def _print_error(text: str) -> None:
    print(f"millrace: {safe_block(text)}", file=sys.stderr)
