"""What the mutation tool finds in SQL files: a mutant must be valid SQL, because an invalid one is always killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.mutant_sql import Parts, conditions, part_of

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


def test_a_test_that_uses_a_statement_reaches_the_functions_that_it_calls(tmp_path: Path) -> None:
    (tmp_path / "queries.sql").write_text(STATEMENTS)
    (tmp_path / "functions.sql").write_text(FUNCTIONS)

    assert Parts(tmp_path).reached_from(["first"]) == {"first", "millrace.outer", "millrace.inner"}
    assert Parts(tmp_path).reached_from(["second"]) == {"second"}
    assert part_of(STATEMENTS, 5) == "second"
    assert part_of(FUNCTIONS, 6) == "millrace.inner"
