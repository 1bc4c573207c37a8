"""The root of the command line: which commands there are, in which order help shows them, and how a run ends."""

from __future__ import annotations

import difflib
import functools
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from millrace.cli import exits
from millrace.cli.command import Common, as_command

# command, module, function: in the order of the help.
SECTIONS: dict[str, tuple[tuple[str, str, str], ...]] = {
    "Start": (
        ("demo", "millrace.cli.demo", "demo"),
        ("init", "millrace.cli.init", "init"),
        ("config", "millrace.cli.config", "config"),
        ("doctor", "millrace.cli.doctor", "doctor"),
    ),
    "Jobs": (
        ("submit", "millrace.cli.submit", "submit"),
        ("status", "millrace.cli.look", "status"),
        ("history", "millrace.cli.history", "history"),
        ("list", "millrace.cli.look", "list_jobs"),
        ("cancel", "millrace.cli.act", "cancel"),
        ("replay", "millrace.cli.act", "replay"),
        ("archive", "millrace.cli.act", "archive"),
        ("unarchive", "millrace.cli.act", "unarchive"),
        ("dead", "millrace.cli.dead", "dead"),
        ("tail", "millrace.cli.tail", "tail"),
    ),
    "Queues": (
        ("queues", "millrace.cli.queues", "queues"),
        ("pause", "millrace.cli.queues", "pause"),
        ("resume", "millrace.cli.queues", "resume"),
        ("drain", "millrace.cli.queues", "drain"),
        ("obliterate", "millrace.cli.obliterate", "obliterate"),
        ("pools", "millrace.cli.pools", "pools"),
        ("schedules", "millrace.cli.schedules", "schedules"),
    ),
    "Workers": (
        ("worker", "millrace.cli.worker", "worker"),
        ("workers", "millrace.cli.workers", "workers"),
        ("monitor", "millrace.cli.monitor", "monitor"),
    ),
    "Web": (("serve", "millrace.cli.serve", "serve"),),
    "Data": (("pipeline", "millrace.cli.pipeline", "GROUP"),),
}

PLACES = {name: (module, function) for commands in SECTIONS.values() for name, module, function in commands}

EPILOG = "\n\n".join(
    [
        "\b\nTry:\n"
        "  millrace init --example tasks.py            make a store, and a small app\n"
        "  export MILLRACE_URL=sqlite:///jobs.db MILLRACE_APP=tasks:app\n"
        '  millrace submit send_email \'{"to": "ada@example.com"}\'\n'
        "  millrace worker                             run what was submitted\n"
        "  millrace queues                             see how it goes",
        "\b\nExit codes:\n" + "\n".join(f"  {code:<4} {meaning}" for code, meaning in exits.MEANING.items()),
        "Data goes to stdout and words to stderr. In a pipe, tables are columns between tabs. "
        "NO_COLOR=1 turns colours off.",
    ]
)


# Whatever the parser objects to (ClickException). Typer has it from click, or by now from a copy of click's.
Wrong: Any = typer.BadParameter.__mro__[2]


class Root(TyperGroup):
    """Commands by section in the help, each loaded when it is asked for, and a guess at what a misspelt one was to be.

    A command needs its own module and what that imports; to load all of them would be felt at every start.
    """

    def list_commands(self, ctx: Any) -> list[str]:
        return list(PLACES)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return command(cmd_name) if cmd_name in PLACES else None

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for section, names in SECTIONS.items():
            with formatter.section(section):
                rows = [
                    (name, command.get_short_help_str(90))
                    for name, *_ in names
                    if (command := self.get_command(ctx, name)) is not None
                ]
                formatter.write_dl(rows)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0] if args else ""
        if name and self.get_command(ctx, name) is None and not name.startswith("-"):
            close = difflib.get_close_matches(name, self.list_commands(ctx), n=1)
            ctx.fail(f"there is no command {name!r}. " + (f"Did you mean {close[0]!r}?" if close else "See --help."))
        return super().resolve_command(ctx, args)


def _typer(**more: Any) -> typer.Typer:
    return typer.Typer(
        rich_markup_mode=None,  # plain help: the same on a terminal and in a pipe, and quick
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
        **more,
    )


@functools.cache
def command(name: str) -> Any:
    """One command as the parser sees it; made once, because a process may run more than one (tests do)."""
    module, function = PLACES[name]
    found = import_module(module)
    if function == "GROUP":
        return found.GROUP
    epilog = "\n\n".join("\b\n" + part for part in getattr(found, "EXAMPLES", {}).get(name, ()))
    alone = _typer(add_completion=False)
    alone.command(name, epilog=epilog or None)(as_command(getattr(found, function)))
    return typer.main.get_command(alone)


@functools.cache
def parser() -> Any:
    """The whole command line as the parser sees it."""
    words = "Millrace: a job queue for Python. Submit jobs, run workers, and see what became of each job."
    app = _typer(name="millrace", cls=Root, help=words, epilog=EPILOG)
    app.callback(invoke_without_command=True)(_root)
    return typer.main.get_command(app)


def _root(
    context: typer.Context,
    url: Annotated[str | None, typer.Option("--url", help="The store, e.g. sqlite:///jobs.db.", metavar="URL")] = None,
    app: Annotated[str | None, typer.Option("--app", help="Your app, as module:name.", metavar="MODULE:NAME")] = None,
    json: Annotated[bool, typer.Option("--json", help="Write JSON to stdout.")] = False,
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    if version:
        from millrace import __version__

        print(f"millrace {__version__}")
        raise typer.Exit(exits.OK)
    if context.invoked_subcommand is None:
        print(context.get_help())
        raise typer.Exit(exits.OK)
    context.obj = Common(url, app, json)


def run(arguments: Sequence[str]) -> int:
    """Parse, run, and answer the exit code; whatever happens, it ends in words and a documented code."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")  # a terminal that cannot show a character still gets the rest
    code = exits.OK
    try:
        code = _parsed(list(arguments))
        if code != exits.PIPE_CLOSED:
            sys.stdout.flush()
            return code
    except BrokenPipeError:
        code = exits.PIPE_CLOSED
    except KeyboardInterrupt:
        return exits.INTERRUPTED
    except OSError as error:  # what was printed could not be written: said here, unless the command itself met it
        if code == exits.OK:
            print(f"millrace: {error}", file=sys.stderr)
            code = exits.code_of(error)
    # Python flushes stdout once more when it exits; there is nobody left to hear it.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code


def _parsed(arguments: list[str]) -> int:
    try:
        answer = parser()(arguments, prog_name="millrace", standalone_mode=False)
        return answer if isinstance(answer, int) else exits.OK
    except typer.Exit as ended:
        return ended.exit_code
    except typer.Abort:
        return exits.INTERRUPTED
    except Wrong as error:
        error.show()
        return exits.USAGE
