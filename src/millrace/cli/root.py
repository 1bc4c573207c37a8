"""The root command: the table of all commands in the order of the help, and the exit code of the program."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from millrace.cli import exits
from millrace.cli.command import Common
from millrace.cli.group import LazyGroup, load_command, new_typer

# command, module, function: in the order of the help.
SECTIONS: dict[str, tuple[tuple[str, str, str], ...]] = {
    "Start": (
        ("demo", "millrace.cli.demo.command", "demo"),
        ("init", "millrace.cli.init.command", "init"),
        ("config", "millrace.cli.config", "config"),
        ("doctor", "millrace.cli.doctor.command", "doctor"),
    ),
    "Jobs": (
        ("submit", "millrace.cli.jobs.submit", "submit"),
        ("status", "millrace.cli.jobs.views", "status"),
        ("history", "millrace.cli.jobs.history", "history"),
        ("log", "millrace.cli.jobs.log", "log"),
        ("list", "millrace.cli.jobs.views", "list_jobs"),
        ("flow", "millrace.cli.jobs.flow", "flow"),
        ("cancel", "millrace.cli.jobs.actions", "cancel"),
        ("replay", "millrace.cli.jobs.actions", "replay"),
        ("archive", "millrace.cli.jobs.actions", "archive"),
        ("unarchive", "millrace.cli.jobs.actions", "unarchive"),
        ("delete", "millrace.cli.jobs.actions", "delete"),
        ("dead", "millrace.cli.jobs.dead", "dead"),
        ("tail", "millrace.cli.jobs.tail", "tail"),
    ),
    "Queues": (
        ("queues", "millrace.cli.queues", "queues"),
        ("pause", "millrace.cli.queues", "pause"),
        ("resume", "millrace.cli.queues", "resume"),
        ("drain", "millrace.cli.queues", "drain"),
        ("obliterate", "millrace.cli.obliterate", "obliterate"),
        ("pools", "millrace.cli.pools", "pools"),
        ("schedules", "millrace.cli.schedules", "schedules"),
        ("schedule", "millrace.cli.schedules", "schedule"),
    ),
    "Workers": (
        ("worker", "millrace.cli.workers.worker", "worker"),
        ("workers", "millrace.cli.workers.listing", "workers"),
        ("monitor", "millrace.cli.workers.monitor", "monitor"),
    ),
    "Web": (("serve", "millrace.cli.serve", "serve"),),
    "Data": (
        ("move", "millrace.cli.move", "move"),
        ("pipeline", "millrace.cli.pipeline.group", "GROUP"),
    ),
}

PLACES = {name: (module, function) for commands in SECTIONS.values() for name, module, function in commands}

EPILOG = "\n\n".join(
    [
        "\b\nTry:\n"
        "  millrace init --example tasks.py            create a store and a small app\n"
        "  export MILLRACE_URL=sqlite:///jobs.db MILLRACE_APP=tasks:app\n"
        '  millrace submit send_email \'{"to": "ada@example.com"}\'\n'
        "  millrace worker                             run the submitted jobs\n"
        "  millrace queues                             see the state of the queues",
        "\b\nExit codes:\n" + "\n".join(f"  {code:<4} {meaning}" for code, meaning in exits.MEANING.items()),
        "Data goes to stdout and messages to stderr. In a pipe, tables are tab-separated. "
        "NO_COLOR=1 turns colours off.",
    ]
)


# The parser's errors (ClickException). Typer takes the class from click, or newer versions from their own copy.
Wrong: Any = typer.BadParameter.__mro__[2]


class Root(LazyGroup):
    """The root group, whose help lists the commands by section."""

    places = PLACES

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for section, names in SECTIONS.items():
            with formatter.section(section):
                formatter.write_dl([(name, command(name).get_short_help_str(90)) for name, *_ in names])


def command(name: str) -> Any:
    return load_command(name, PLACES[name])


@functools.cache
def parser() -> Any:
    """Return the parser of the whole command line."""
    words = "Millrace: a job queue for Python. Submit jobs, run workers, and inspect jobs and their history."
    app = new_typer(name="millrace", cls=Root, help=words, epilog=EPILOG)
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
    """Parse the arguments, run the command and return its exit code. An error becomes a message and an exit code."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")  # characters that the terminal cannot show are escaped
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
    except OSError as error:  # the output could not be written; report it, unless the command already did
        if code == exits.OK:
            print(f"millrace: {error}", file=sys.stderr)
            code = exits.code_of(error)
    # Python flushes stdout once more at exit, which would fail again.
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
