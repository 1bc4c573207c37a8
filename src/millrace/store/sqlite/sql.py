"""The statements of this store, read once from the .sql files beside this module."""

from __future__ import annotations

import re
from functools import cache
from importlib import resources

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_ROW = re.compile(r"\((?:\?, )*\?\)")
SIZES = (256, 64, 16, 4, 1)  # rows per statement: each size is prepared once and then reused


def _text(*path: str) -> str:
    return resources.files(__package__).joinpath(*path).read_text("utf-8")


def _load() -> dict[str, str]:
    found: dict[str, str] = {}
    for file in sorted(resources.files(__package__).joinpath("queries").iterdir(), key=lambda entry: entry.name):
        if not file.name.endswith(".sql"):
            continue
        _, *parts = _NAME.split(file.read_text("utf-8"))
        for name, body in zip(parts[::2], parts[1::2], strict=True):
            if name in found:
                raise ValueError(f"two statements are called {name!r}")
            found[name] = body.strip().removesuffix(";")
    return found


SQL: dict[str, str] = _load()


class ManyRows:
    """A statement whose row of question marks is repeated, once per row it is given."""

    def __init__(self, name: str) -> None:
        row = _ROW.search(SQL[name])
        if row is None:
            raise ValueError(f"statement {name!r} has no row of question marks")
        head, group, tail = SQL[name][: row.start()], row.group(), SQL[name][row.end() :]
        self.width = group.count("?")
        self.by_size = {size: head + ", ".join([group] * size) + tail for size in SIZES}


@cache
def many_rows(name: str) -> ManyRows:
    return ManyRows(name)


_MIGRATIONS = (_text("schema.sql"), _text("schema_2.sql"))


def migrations() -> tuple[str, ...]:
    """Schema steps in order; step n leads from version n to version n + 1."""
    return _MIGRATIONS
