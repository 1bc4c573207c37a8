"""The group `millrace pipeline`: bulk work on Spark.

The help imports the modules of all commands, so they must be quick to import. A command imports Spark when it starts
its session in `options.py`. If Spark is missing, the error says what to install.
"""

from __future__ import annotations

from typing import Any

import typer

from millrace.cli.group import LazyGroup, new_typer

# The module and function of each command, in the order of the help.
COMMANDS = {
    "run": ("millrace.cli.pipeline.run", "run"),
    "audit": ("millrace.cli.pipeline.audit", "audit"),
    "report": ("millrace.cli.pipeline.report", "report"),
    "views": ("millrace.cli.pipeline.views", "views"),
    "compact": ("millrace.cli.pipeline.compact", "compact"),
    "load": ("millrace.cli.pipeline.load", "load"),
    "drain": ("millrace.cli.pipeline.drain", "drain"),
    "shadow": ("millrace.cli.pipeline.shadow", "shadow"),
    "replay": ("millrace.cli.pipeline.bulk", "replay"),
    "cancel": ("millrace.cli.pipeline.bulk", "cancel"),
    "archive": ("millrace.cli.pipeline.bulk", "archive"),
    "unarchive": ("millrace.cli.pipeline.bulk", "unarchive"),
    "delete": ("millrace.cli.pipeline.bulk", "delete"),
    "sweep": ("millrace.cli.pipeline.sweep", "sweep"),
    "compact-archive": ("millrace.cli.pipeline.archive", "compact_archive"),
    "expire-archive": ("millrace.cli.pipeline.archive", "expire_archive"),
    "tables": ("millrace.cli.pipeline.tables", "tables"),
}

EXAMPLES = """\b
Examples:
  millrace pipeline tables events
  millrace pipeline run --help"""


class PipelineGroup(LazyGroup):
    places = COMMANDS
    where = " in the pipeline"


def _group() -> Any:
    words = "Work on jobs in bulk, on Spark: history, reports, audits, backlogs."
    app = new_typer(
        name="pipeline", cls=PipelineGroup, help=words, epilog=EXAMPLES, no_args_is_help=True, add_completion=False
    )
    app.callback()(lambda: None)
    return typer.main.get_command(app)


GROUP = _group()
