"""docs/requirements.md: every number, one line, and the tests that hold it or the word advice."""

from __future__ import annotations

import importlib
from pathlib import Path

from tools import requirements
from tools.requirements import Requirement, conformance, holders, numbers_in, numbers_in_name, rendered, unheld

COUNTS = {"W": 53, "E": 19, "O": 39, "L": 12, "R": 35, "BW": 17, "BE": 17, "BO": 23, "BL": 10, "BR": 23}


def test_every_number_has_its_line():
    expected = [f"{kind}-{digits:02d}" for kind, count in COUNTS.items() for digits in range(1, count + 1)]

    assert list(requirements.requirements()) == expected
    assert len(expected) == 248


def test_every_behaviour_is_held_by_a_test():
    assert unheld(requirements.requirements(), holders()) == []


def test_no_test_cites_a_number_that_does_not_exist():
    assert sorted(holders().keys() - requirements.requirements().keys()) == []


def test_every_named_test_of_the_conformance_suite_exists():
    for path in conformance():
        module, _, test = path.removeprefix("conformance/").partition("::")
        found = importlib.import_module(f"millrace.testing.conformance.{module.removesuffix('.py')}")
        assert not test or callable(getattr(found, test)), path


def test_the_product_carries_no_requirement_numbers():
    demo_warehouse = "W-13"
    for file in (Path(requirements.ROOT) / "src").rglob("*.py"):
        cited = numbers_in(file.read_text(encoding="utf-8")) - {demo_warehouse}
        assert not cited, f"{file} cites {sorted(cited)}; put them into a test or tests/project/conformance.toml"


def test_the_page_is_up_to_date():
    assert requirements.main(["--check"]) == 0, "run: python tools/requirements.py"


def test_numbers_are_read_from_names_docstrings_and_ranges():
    assert numbers_in_name("test_bo_05_a_lost_reply") == {"BO-05"}
    assert numbers_in_name("test_w49_w26_the_delay_grows_10_times") == {"W-49", "W-26"}
    assert numbers_in("W-36…W-38 and O-10 to O-12, not UTF-16") == {"W-36", "W-37", "W-38", "O-10", "O-11", "O-12"}


def test_a_number_without_a_test_is_told_unless_it_is_advice():
    known = {"W-01": Requirement("W-01", "one", False), "W-02": Requirement("W-02", "two", True)}

    assert unheld(known, {"W-02": []}) == ["W-01 is held by no test: one"]
    page = rendered(known, {"W-01": ["tests/a.py::test_b"]})
    assert "| W-01 | one | `tests/a.py::test_b` |" in page and "| W-02 | two | advice |" in page
