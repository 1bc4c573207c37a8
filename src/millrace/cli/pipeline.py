"""`millrace pipeline …`: what touches jobs in bulk, on Spark. Each command is loaded when it is asked for.

A command's module must be quick to import, because the help imports all of them: Spark is imported where it is used,
by `spark_session`, which also says what to install where it is missing.
"""

from __future__ import annotations

import functools
import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperGroup

from millrace.cli.command import as_command
from millrace.cli.spark_start import quietly
from millrace.domain.hints import meant

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# command, module, function: in the order of the help.
COMMANDS: tuple[tuple[str, str, str], ...] = (
    ("run", "millrace.cli.pipeline_run", "run"),
    ("audit", "millrace.cli.pipeline_audit", "audit"),
    ("report", "millrace.cli.pipeline_report", "report"),
    ("compact", "millrace.cli.pipeline_compact", "compact"),
    ("drain", "millrace.cli.pipeline_drain", "drain"),
    ("replay", "millrace.cli.pipeline_bulk", "replay"),
    ("cancel", "millrace.cli.pipeline_bulk", "cancel"),
    ("archive", "millrace.cli.pipeline_bulk", "archive"),
    ("unarchive", "millrace.cli.pipeline_bulk", "unarchive"),
    ("sweep", "millrace.cli.pipeline_sweep", "sweep"),
    ("compact-archive", "millrace.cli.pipeline_archive", "compact_archive"),
    ("expire-archive", "millrace.cli.pipeline_archive", "expire_archive"),
    ("tables", "millrace.cli.pipeline_tables", "tables"),
)

EXAMPLES = """\b
Examples:
  millrace pipeline tables events
  millrace pipeline run --help"""


def spark_session(master: str | None = None, *, spoken: bool = False, **settings: str) -> SparkSession:
    """The session of one command; the command stops it. MissingExtra where Spark is not installed. `spoken`: show what
    Spark's processes write to their standard error."""
    from millrace.spark import require_spark

    require_spark()
    from millrace.spark.session import session

    # What a query is refused for is raised, and said by the command; here it would come again, as a page of JSON.
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    place = "" if master is None else f" on {master.partition(';')[0]}"  # a token may follow, with Spark Connect
    with quietly(f"starting Spark{place}", spoken=spoken):
        return session(master=master, settings={name.replace("_", "."): value for name, value in settings.items()})


class Group(TyperGroup):
    def list_commands(self, ctx: Any) -> list[str]:
        return [name for name, _, _ in COMMANDS]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return _command(cmd_name) if cmd_name in self.list_commands(ctx) else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0] if args else ""
        if name and not name.startswith("-") and self.get_command(ctx, name) is None:
            ctx.fail(f"there is no command {name!r} in the pipeline. {meant(name, self.list_commands(ctx))}")
        return super().resolve_command(ctx, args)


@functools.cache
def _command(name: str) -> Any:
    module, function = next((module, function) for known, module, function in COMMANDS if known == name)
    found = import_module(module)
    epilog = "\n\n".join("\b\n" + part for part in getattr(found, "EXAMPLES", {}).get(name, ()))
    alone = _typer(add_completion=False)
    alone.command(name, epilog=epilog or None)(as_command(getattr(found, function)))
    return typer.main.get_command(alone)


def _typer(**more: Any) -> typer.Typer:
    return typer.Typer(
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
        **more,
    )


def _group() -> Any:
    words = "Work on jobs in bulk, on Spark: history, reports, audits, backlogs."
    app = _typer(name="pipeline", cls=Group, help=words, epilog=EXAMPLES, no_args_is_help=True, add_completion=False)
    app.callback()(lambda: None)
    return typer.main.get_command(app)


GROUP = _group()
