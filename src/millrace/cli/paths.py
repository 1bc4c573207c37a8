"""Options that take a local path."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

from millrace.app.local_path import local_path
from millrace.domain.errors import InvalidInput


def path_option(flag: str, metavar: str, text: str, kind: Callable[[Any], Any] = Path) -> Any:
    """Return a typer option for a local path. Its value is a `Path`, or the result of `kind`. URLs are refused."""

    def parsed(value: str) -> Any:
        try:
            path = local_path(value, flag)
        except InvalidInput as error:
            raise typer.BadParameter(str(error)) from None
        return kind(value if path == Path(value) else path)

    return typer.Option(flag, metavar=metavar, help=text, show_default=False, parser=parsed)
