"""Runs a command on an event loop. An exception becomes a message on stderr and an exit code."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from importlib.util import find_spec

from millrace.cli import exits
from millrace.cli.advice import as_typed
from millrace.cli.session import CommandSession
from millrace.cli.text import safe_block
from millrace.domain.errors import QueueError


def run_command(
    new_session: Callable[[], CommandSession], command: Callable[[CommandSession], Awaitable[int]], fast: bool
) -> int:
    """Run the command with a new session and return its exit code. With `fast`, the loop is uvloop's if installed."""
    try:
        session = new_session()
        with asyncio.Runner(loop_factory=_loop_factory() if fast else None) as runner:
            return runner.run(_awaited(command(session)))
    except BrokenPipeError:
        return exits.PIPE_CLOSED
    except KeyboardInterrupt:
        return exits.INTERRUPTED
    except (QueueError, OSError) as error:
        return _report(error, exits.code_of(error))
    except Exception as error:
        return _report(error, exits.BUG)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return a factory of uvloop's loops, if uvloop is installed. Else return None, which means asyncio's own loop.
    MILLRACE_UVLOOP=0 turns uvloop off.
    """
    if os.environ.get("MILLRACE_UVLOOP") == "0" or find_spec("uvloop") is None:
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
