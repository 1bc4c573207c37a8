"""The statements of this store, read once from the .sql files beside this module, and put into a schema of choice."""

from __future__ import annotations

import re
from functools import cache
from importlib import resources

from millrace.domain.errors import InvalidInput

VERSION = 1
_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_SCHEMA = re.compile(r"\bmillrace\.")
_SCHEMA_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,50}")


def check_schema(name: str) -> str:
    if _SCHEMA_NAME.fullmatch(name) is None or name.lower().startswith("pg_"):
        raise InvalidInput(
            f"schema {name!r} is not allowed: use 1 to 51 letters, digits and underscores, not beginning with a digit "
            "or with pg_"
        )
    return name


@cache
def statements(schema: str) -> dict[str, str]:
    """Every named statement, in this schema."""
    found: dict[str, str] = {}
    for file in sorted(resources.files(__package__).joinpath("queries").iterdir(), key=lambda entry: entry.name):
        if not file.name.endswith(".sql"):
            continue
        _, *parts = _NAME.split(file.read_text("utf-8"))
        for name, body in zip(parts[::2], parts[1::2], strict=True):
            if name in found:
                raise ValueError(f"two statements are called {name!r}")
            found[name] = in_schema(body.strip().removesuffix(";"), schema)
    return found


def in_schema(text: str, schema: str) -> str:
    return _SCHEMA.sub(f'"{check_schema(schema)}".', text)


@cache
def migrations(schema: str) -> tuple[str, ...]:
    """Schema steps in order; step n leads from version n to version n + 1."""
    folder = resources.files(__package__).joinpath("migrations")
    parts: dict[str, list[str]] = {}
    for file in sorted(folder.iterdir(), key=lambda entry: ("functions" in entry.name, entry.name)):
        if file.name.endswith(".sql"):
            parts.setdefault(file.name[:4], []).append(in_schema(file.read_text("utf-8"), schema))
    return tuple("\n".join(parts[number]) for number in sorted(parts))
