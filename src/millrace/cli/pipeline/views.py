"""`millrace pipeline views`: prints the analytics views as SQL. It needs neither Spark nor a store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from millrace.app.duration import milliseconds
from millrace.cli import exits
from millrace.cli.session import CommandSession
from millrace.domain.errors import InvalidInput

if TYPE_CHECKING:
    from millrace.spark.analytics import Objective

EXAMPLES = {
    "views": (
        "Examples:\n"
        "  millrace pipeline views --dialect duckdb | duckdb lake.db\n"
        "  millrace pipeline views --dialect trino --objective 'send_receipt start 30s 99%'",
        "The engine needs the lake's tables events, attempts, jobs and groups. See docs/analytics.md.",
    )
}
Objectives = Annotated[
    list[str] | None,
    typer.Option(
        "--objective",
        metavar="TEXT",
        help="Task, start or finish, time and share, such as 'send_receipt start 30s 99%'; may be repeated.",
    ),
]


async def views(
    session: CommandSession,
    dialect: Annotated[str, typer.Option("--dialect", metavar="NAME", help="duckdb, spark or trino.")],
    objective: Objectives = None,
) -> int:
    """Print the SQL that creates the analytics views: objectives, trends, cost, backlog, causes of failure."""
    from millrace.spark.analytics.views import script

    text = script(dialect, objectives_of(objective))
    if session.output.json:
        session.output.document({"dialect": dialect, "sql": text})
    else:
        print(text, end="")
    return exits.OK


def objectives_of(texts: list[str] | None) -> list[Objective]:
    """Parse the values of --objective."""
    from millrace.spark.analytics import Objective

    found = []
    for text in texts or ():
        words = text.rsplit(maxsplit=3)
        if len(words) != 4:
            raise InvalidInput(
                f"--objective takes a task, start or finish, a time and a share, such as 'send_receipt start 30s 99%'; "
                f"not {text!r}"
            )
        task, measure, within, share = words
        found.append(Objective(task, measure, milliseconds("--objective", within), _share(share)))
    return found


def _share(text: str) -> float:
    try:
        return float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        raise InvalidInput(f"--objective: {text!r} is not a share such as 99% or 0.99") from None
