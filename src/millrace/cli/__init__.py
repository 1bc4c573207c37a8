"""The command line: `millrace`, or `python -m millrace`.

Every command uses the public API. Data is written to stdout, messages to stderr, and the exit code reports success.
Start reading at `root.py`, the table of commands; `views/` defines how jobs are shown.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from typing import NoReturn

from millrace.domain.extras import install


def main() -> None:
    """Run the command line and exit. If the packages of the `cli` extra are missing, only `millrace worker` works, and
    the other commands print how to install them.
    """
    try:
        import rich as _rich
        import typer as _typer
    except ModuleNotFoundError as error:
        if error.name not in ("rich", "typer"):
            raise
        if sys.argv[1:2] == ["worker"]:
            from millrace.cli.workers.run import main as run_worker

            _exit(run_worker(sys.argv[2:]))
        print(f"The command line needs two more packages. Run: {install('cli')}", file=sys.stderr)
        sys.exit(2)
    del _rich, _typer
    from millrace.cli.root import run

    _exit(run(sys.argv[1:]))


def _exit(code: int) -> NoReturn:
    """End the process as `sys.exit` does, but do not finalize the interpreter.

    The threads of a native driver (of obstore, for buckets) abort the process if they need the interpreter while it is
    being finalized. The child processes of `multiprocessing` exit in the same way.
    """
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads that are not daemons
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)
