"""Failures as text: complete where they fit, cut where they do not (part 2: errors of a handler)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.domain.outcome import MAX_ERROR_TEXT, Failure


def caught(raising: object) -> BaseException:
    try:
        raise raising  # type: ignore[misc]
    except BaseException as error:
        return error


def test_an_exception_becomes_type_message_and_traceback() -> None:
    failure = Failure.from_exception(caught(ValueError("bad value")))

    assert (failure.type, failure.message) == ("ValueError", "bad value")
    assert failure.traceback.startswith("Traceback (most recent call last):")
    assert failure.traceback.endswith("ValueError: bad value\n")


def test_a_message_that_cannot_be_told_does_not_hide_the_error() -> None:
    class Broken(Exception):
        def __str__(self) -> str:
            raise LookupError

    assert Failure.from_exception(Broken()).message == "<message unavailable: LookupError>"


def test_text_that_no_store_can_write_is_spelled_out() -> None:
    """Names of files that are not UTF-8 come as half surrogate pairs; a settle must not fail for one for ever."""
    failure = Failure.from_exception(caught(FileNotFoundError("no such file: '\udc80.txt'")))

    assert failure.message == "no such file: '\\udc80.txt'"
    assert failure.traceback.endswith("FileNotFoundError: no such file: '\\udc80.txt'\n")
    assert (failure.message + failure.traceback).encode()


def test_what_fits_is_kept_as_it_is() -> None:
    failure = Failure("E", "m" * 4_000, "t" * 5_999)

    assert failure.capped() is failure
    assert failure.capped() == failure


def test_a_long_traceback_keeps_its_end() -> None:
    capped = Failure("E", "short", "begin" + "x" * 20_000 + "the failing line").capped()

    assert (capped.type, capped.message) == ("E", "short")
    assert capped.traceback.startswith("… (cut)\n") and capped.traceback.endswith("the failing line")
    assert len(capped.type) + len(capped.message) + len(capped.traceback) == MAX_ERROR_TEXT


def test_a_long_message_keeps_its_beginning() -> None:
    capped = Failure("E", "begin" + "m" * 20_000, "t" * 100).capped()

    assert capped.message.startswith("begin") and capped.message.endswith("\n… (cut)")
    assert len(capped.message) == MAX_ERROR_TEXT // 2
    assert capped.traceback == "t" * 100


@pytest.mark.parametrize(("kind", "kept"), [("K" * 200, "K" * 200), ("K" * 201, "K" * 192 + "\n… (cut)")])
def test_a_long_type_is_cut(kind: str, kept: str) -> None:
    assert Failure(kind, "", "t" * 20_000).capped().type == kept


@given(kind=st.integers(0, 12_000), message=st.integers(0, 12_000), trace=st.integers(0, 25_000))
def test_whatever_the_texts_they_fit_together(kind: int, message: int, trace: int) -> None:
    capped = Failure("k" * kind, "m" * message, "t" * trace).capped()

    assert len(capped.type) + len(capped.message) + len(capped.traceback) <= MAX_ERROR_TEXT
    assert capped.capped() == capped
    if kind + message + trace <= MAX_ERROR_TEXT:
        assert (len(capped.type), len(capped.message), len(capped.traceback)) == (kind, message, trace)
