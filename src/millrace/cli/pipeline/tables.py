"""`millrace pipeline tables`: shows the tables that Spark can read. It needs neither Spark nor a store."""

from __future__ import annotations

from typing import Annotated

import typer

from millrace.cli import exits
from millrace.cli.output import Cell
from millrace.cli.session import CommandSession

EXAMPLES = {
    "tables": (
        "Examples:\n"
        "  millrace pipeline tables\n"
        "  millrace pipeline tables events\n"
        "  millrace pipeline tables events --json",
    )
}


async def tables(
    session: CommandSession,
    table: Annotated[str | None, typer.Argument(metavar="[TABLE]", help="Its columns.", show_default=False)] = None,
) -> int:
    """Show the tables of format("millrace"), or the columns of one table."""
    from millrace.spark.schema import SCHEMA_VERSION, TABLES, table_named

    if session.output.json:
        chosen = TABLES if table is None else {table: table_named(table)}
        columns = {
            name: [{"name": one.name, "type": one.type, "nullable": one.nullable} for one in found.columns]
            for name, found in chosen.items()
        }
        session.output.document({"version": SCHEMA_VERSION, "tables": columns})
        return exits.OK
    rows: list[list[Cell]]
    if table is None:
        rows = [[found.name, len(found.columns), found.help] for found in TABLES.values()]
        session.output.table(("table", "columns", ""), rows)
    else:
        rows = [[one.name, one.type, "yes" if one.nullable else "", one.help] for one in table_named(table).columns]
        session.output.table(("column", "type", "nullable", ""), rows)
    return exits.OK
