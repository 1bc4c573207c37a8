"""The command line: `millrace`, and `python -m millrace`.

It does what the API does and nothing besides: data on stdout, words on stderr, an exit code that says how it went.
"""

from __future__ import annotations

import sys


def main() -> None:
    """The entry point. What it needs comes with an extra, so that a library user need not install it."""
    try:
        import rich as _rich
        import typer as _typer
    except ModuleNotFoundError as error:
        if error.name not in ("rich", "typer"):
            raise
        print("The command line needs two more packages. Run: pip install 'millrace[cli]'", file=sys.stderr)
        sys.exit(2)
    del _rich, _typer
    from millrace.cli.root import run

    sys.exit(run(sys.argv[1:]))
