"""`millrace config`: shows every setting, its value and its origin."""

from __future__ import annotations

from typing import Any

from millrace.app.settings import HIDDEN, SETTINGS, ProgramSettings, masked
from millrace.cli import exits
from millrace.cli.output import Cell
from millrace.cli.session import CommandSession

EXAMPLES = {
    "config": (
        "Settings come from a flag, the environment, [tool.millrace] in pyproject.toml, or a default, in this order:\n"
        "  [tool.millrace]\n"
        '  url = "sqlite:///jobs.db"      # relative to pyproject.toml\n'
        '  app = "shop.tasks:app"\n'
        "  slots = 20",
    )
}


async def config(session: CommandSession) -> int:
    """Show every setting, its value and its origin. Passwords are hidden."""
    settings = session.settings
    if session.output.json:
        rows = [
            {
                "name": setting.name,
                "value": shown(settings, setting.name),
                "origin": settings.values[setting.name].origin,
                "where": settings.values[setting.name].where or None,
                "env": setting.env,
                "help": setting.help,
            }
            for setting in SETTINGS.values()
        ]
        session.output.document({"settings": rows, "unknown_variables": list(settings.strangers)})
    else:
        session.output.table(
            ("setting", "value", "origin", "where", "variable"), [_row(settings, name) for name in SETTINGS]
        )
    for name in settings.strangers:
        session.output.say(f"note: {name} is set, but Millrace has no such setting")
    return exits.OK


def _row(settings: ProgramSettings, name: str) -> list[Cell]:
    value, found = shown(settings, name), settings.values[name]
    text = None if value is None else ",".join(value) if isinstance(value, list) else str(value)  # not 8,321
    return [name, text, found.origin, found.where, SETTINGS[name].env]


def shown(settings: ProgramSettings, name: str) -> Any:
    value = settings[name]
    if SETTINGS[name].secret and value is not None:
        return HIDDEN
    if name in ("url", "s3_endpoint") and value is not None:
        return masked(value)
    return list(value) if isinstance(value, tuple) else value
