"""The statements of this store, which are read from .sql files, and the class that runs them in the chosen schema."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, Protocol, TypeVar

from millrace.domain.errors import InvalidInput
from millrace.store.sql.ports import Row, Statements, load_statements

T = TypeVar("T")
_SCHEMA = re.compile(r"\bmillrace\.")
_PARAMETER = re.compile(r"\$(\d+)")
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
    """Return all statements of `queries/*.sql` for this schema, by name."""
    return {name: in_schema(text, schema) for name, text in load_statements(__package__).items()}


def in_schema(text: str, schema: str) -> str:
    return _SCHEMA.sub(f'"{check_schema(schema)}".', text)


_EACH = 32  # rows in one statement of `execute_each`


class Wire(Protocol):
    """A connection that a step uses in its thread.

    `rows` blocks until the rows are read. It raises `Held` if a statement with NOWAIT finds a locked row.
    """

    def rows(self, sql: str, args: Sequence[Any]) -> Sequence[Row]: ...


class Held(Exception):
    """Raised if a statement with NOWAIT finds a row that another transaction has locked."""


@cache
def combined(*texts: str) -> str:
    """Return one statement that runs all of these, which must be INSERT, UPDATE or DELETE without a WITH clause.

    The arguments of all statements are passed one after the other.
    """
    parts: list[str] = []
    used = 0
    for text in texts:
        parts.append(f"w{len(parts)} AS (\n{_renumbered(text, used)}\n)")
        used += max(int(found[1]) for found in _PARAMETER.finditer(text))
    return f"WITH {', '.join(parts)} SELECT"


def _renumbered(text: str, by: int) -> str:
    return _PARAMETER.sub(lambda found: f"${int(found[1]) + by}", text)


def _column(values: Sequence[Any]) -> list[Any] | None:
    """Return the argument for one column: None if it has no values, because `unnest` fills it up with NULLs.

    The driver looks at each element of an array, so a shorter argument takes less time.
    """
    return None if values[0] is None and values.count(None) == len(values) else list(values)


def once(values: Sequence[T]) -> list[T]:
    """If all values are equal, return a list with this single value, otherwise a list of all values."""
    return list(values[:1] if values.count(values[0]) == len(values) else values)


class PostgresStatements(Statements):
    """Runs named statements on one connection. Many rows are passed as one array per column."""

    def __init__(self, wire: Wire, sql: Mapping[str, str]) -> None:
        self._wire = wire
        self._sql = sql
        self._waiting: list[tuple[str, Sequence[Any]]] | None = None  # inside `together`: writes to send at its end

    def rows(self, name: str, *args: Any) -> Sequence[Row]:
        return self._wire.rows(self._sql[name], args)

    def rows_of(self, name: str, keys: Sequence[tuple[Any, ...]]) -> Sequence[Row]:
        return self.rows(name, *(list(column) for column in zip(*keys, strict=True)))

    def write(self, name: str, rows: Sequence[tuple[Any, ...]]) -> None:
        self.execute(name, *map(_column, zip(*rows, strict=True)))

    def write_short(self, name: str, rows: Sequence[tuple[Any, ...]], short: Collection[int]) -> None:
        """Like `write`. For the columns with the indexes `short`, which are never NULL, the statement accepts an array
        with one element if all values are equal.
        """
        columns = enumerate(zip(*rows, strict=True))
        self.execute(name, *(once(column) if index in short else _column(column) for index, column in columns))

    def delete(self, name: str, keys: Sequence[tuple[Any, ...]]) -> None:
        self.write(name, keys)

    def execute(self, name: str, *args: Any) -> None:
        """Run a statement that changes rows; inside `together`, at the end of the block."""
        if self._waiting is None:
            self.rows(name, *args)
        else:
            self._waiting.append((self._sql[name], args))

    def execute_each(self, name: str, rows: Sequence[tuple[Any, ...]]) -> None:
        """Run a statement that adds rows once for each of these rows; many of them in few statements."""
        if len(rows) == 1:
            self.execute(name, *rows[0])
            return
        for first in range(0, len(rows), _EACH):
            some = rows[first : first + _EACH]
            self._wire.rows(combined(*[self._sql[name]] * len(some)), [arg for row in some for arg in row])

    @contextmanager
    def together(self) -> Iterator[None]:
        waiting: list[tuple[str, Sequence[Any]]] = []
        self._waiting = waiting
        try:
            yield
        finally:
            self._waiting = None
        if waiting:
            self._wire.rows(combined(*(text for text, _ in waiting)), [arg for _, args in waiting for arg in args])
