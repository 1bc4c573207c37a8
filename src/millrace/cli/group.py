"""Groups of commands. The module of a command is imported only when the command is used. Importing all of them would
slow down every start.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from importlib import import_module
from typing import Any, ClassVar

import typer
from typer.core import TyperGroup

from millrace.cli.command import as_command
from millrace.domain.errors import did_you_mean

Place = tuple[str, str]  # the module and the function of a command


class LazyGroup(TyperGroup):
    """A group of commands. If a command is misspelt, the error suggests a similar name. Subclasses set `places`, which
    maps each command to its module and function, in the order of the help.
    """

    places: ClassVar[Mapping[str, Place]]
    where: ClassVar[str] = ""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.places)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return load_command(cmd_name, self.places[cmd_name]) if cmd_name in self.places else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0] if args else ""
        if name and not name.startswith("-") and name not in self.places:
            ctx.fail(f"there is no command {name!r}{self.where}. {did_you_mean(name, self.places)}")
        return super().resolve_command(ctx, args)


def new_typer(**more: Any) -> typer.Typer:
    return typer.Typer(
        rich_markup_mode=None,  # plain help: the same on a terminal and in a pipe, and faster
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
        **more,
    )


@functools.cache
def load_command(name: str, place: Place) -> Any:
    """Import a command and return it as the parser's command object. The result is cached, because tests run many
    commands in one process.
    """
    module, function = place
    found = import_module(module)
    if function == "GROUP":
        return found.GROUP
    epilog = "\n\n".join("\b\n" + part for part in getattr(found, "EXAMPLES", {}).get(name, ()))
    alone = new_typer(add_completion=False)
    alone.command(name, epilog=epilog or None)(as_command(getattr(found, function)))
    return typer.main.get_command(alone)
