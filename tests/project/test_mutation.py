"""What the mutation tool finds in files: a mutant must be valid, because an invalid one is always killed."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tools import mutant_lua
from tools.mutant_sql import Parts, conditions, part_of
from tools.mutate import Negate

STATEMENTS = """-- name: first
SELECT millrace.outer(1);

-- name: second
SELECT 2 WHERE true;
"""
FUNCTIONS = """CREATE OR REPLACE FUNCTION millrace.outer(n bigint) RETURNS bigint LANGUAGE sql AS $$
    SELECT millrace.inner(n)
$$;

CREATE OR REPLACE FUNCTION millrace.inner(n bigint) RETURNS bigint LANGUAGE sql AS $$
    SELECT n WHERE n > 0
$$;
"""


def found_in(text: str) -> list[str]:
    return [" ".join(text[start:end].split()) for start, end in conditions(text)]


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT a FROM b WHERE c = 1 AND d OR e ORDER BY a;", ["c = 1", "d", "e"]),
        ("SELECT a FROM b JOIN c ON c.id = b.id WHERE d LIMIT 1", ["c.id = b.id", "d"]),
        ("SELECT a FROM b WHERE c FOR UPDATE SKIP LOCKED", ["c"]),
        ("SELECT a FROM b WHERE c OFFSET 0", ["c"]),
        ("AS $$ SELECT a WHERE b $$;", ["b"]),
        ("SELECT a OR b, c AND d AS e FROM f", ["b", "d"]),
        ("SELECT a OR b INTO c FROM d", ["b"]),
        ("SELECT a WHERE b BETWEEN 1 AND 2 AND c", ["b BETWEEN 1 AND 2", "c"]),
        ("SELECT a WHERE b IS DISTINCT FROM c", ["b IS DISTINCT FROM c"]),
        ("SELECT DISTINCT ON (a, b) * FROM c WHERE d", ["d"]),
        ("SELECT a FROM b WHERE c >= :from AND d < :to", ["c >= :from", "d < :to"]),
        ("SELECT a WHERE (b OR c)", ["(b OR c)", "b", "c"]),
        (
            "SELECT a WHERE b = CASE WHEN c AND d THEN 1 ELSE 2 END AND e",
            ["b = CASE WHEN c AND d THEN 1 ELSE 2 END", "c", "d", "e"],
        ),
        ("SELECT a WHERE CASE b WHEN 1 THEN c ELSE d END", ["CASE b WHEN 1 THEN c ELSE d END"]),
        ("IF a AND b THEN c := 1; ELSIF d THEN c := 2; END IF;", ["a", "b", "d"]),
        ("WHILE a LOOP EXIT WHEN b; END LOOP;", ["a", "b"]),
        ("EXCEPTION WHEN lock_not_available THEN RETURN false;", []),
        ("SELECT a FROM b HAVING count(*) > 0", ["count(*) > 0"]),
        ("INSERT INTO a SELECT b ON CONFLICT (c) DO NOTHING", []),
        ("SELECT a WHERE b -- or c\n", ["b"]),
    ],
)
def test_a_condition_ends_where_its_expression_ends(sql: str, expected: list[str]) -> None:
    assert found_in(sql) == expected


@pytest.mark.parametrize(
    ("lua", "expected"),
    [
        ("if a then b() elseif c then d() end", ["a", "c"]),
        ("if a and not b or c == 1 then d() end", ["a", "a and not b or c == 1", "not b", "c == 1"]),
        ("while a[i] ~= b do c() end", ["a[i] ~= b"]),
        ("repeat a() until b or c\nd()", ["b", "b or c", "c"]),
        ("if a and (b or c) then d() end", ["a", "a and (b or c)", "(b or c)", "b", "c"]),
        ("if f(a, b) then c() end", ["f(a, b)"]),
        ("if f(a or 0) then c() end", ["f(a or 0)"]),
        ("if (a or '') ~= b then c() end", ["(a or '') ~= b", "a"]),
        ("local a = b and c or d", ["b"]),
        ("local a, b = c or 0, d == 1 and e or f", ["d == 1"]),
        ("return not a or b and c", ["b"]),
        ("return (not a or b) and (c and d)", ["(not a or b)", "c"]),
        ("x = y .. (a and 'l' or ':') .. z -- b and c", ["a"]),
        ("for _, a in ipairs(b and {} or c) do d() end", ["b"]),
        ("f({ a = b and c, d = e or 1 })", ["b"]),
        ("if a -- and b\n  and c then d() end", ["a", "a -- and b\n  and c", "c"]),
    ],
)
def test_conditions_of_lua_are_those_of_statements_and_choices(lua: str, expected: list[str]) -> None:
    assert [lua[start:end] for start, end in mutant_lua.conditions(lua)] == expected


def test_constants_assertions_and_type_checking_are_no_conditions_of_python() -> None:
    visitor = Negate()
    visitor.visit(ast.parse("if TYPE_CHECKING: pass\nif a == b or c: d = e or ''\nassert f"))

    assert sorted(what for _, _, what in visitor.found) == ["a == b", "a == b or c", "c", "e"]


def test_a_test_that_uses_a_statement_reaches_the_functions_that_it_calls(tmp_path: Path) -> None:
    (tmp_path / "queries.sql").write_text(STATEMENTS)
    (tmp_path / "functions.sql").write_text(FUNCTIONS)

    assert Parts(tmp_path).reached_from(["first"]) == {"first", "millrace.outer", "millrace.inner"}
    assert Parts(tmp_path).reached_from(["second"]) == {"second"}
    assert part_of(STATEMENTS, 5) == "second"
    assert part_of(FUNCTIONS, 6) == "millrace.inner"
