"""Generated ids and tokens."""

import time
import uuid

import pytest

from millrace.app import ids


def test_sorted_ids_grow_within_a_call_and_from_call_to_call():
    drawn = [one for _ in range(50) for one in ids.sorted_ids(20)]

    assert drawn == sorted(drawn)
    assert len(set(drawn)) == 1_000


def test_sorted_ids_grow_also_when_the_clock_is_set_back(monkeypatch):
    times = iter([2_000, 1_000, 1_000])
    monkeypatch.setattr(ids, "_last", (0, 0))
    monkeypatch.setattr(time, "time_ns", lambda: next(times) * 1_000_000)

    drawn = [ids.sorted_ids(1)[0] for _ in range(3)]

    assert drawn == sorted(drawn)


def test_more_draws_than_a_millisecond_has_steps_borrow_from_the_next(monkeypatch):
    monkeypatch.setattr(ids, "_last", (0, 0))
    monkeypatch.setattr(time, "time_ns", lambda: 5_000_000)

    drawn = [ids.sorted_ids(1)[0] for _ in range(5_000)]

    assert drawn == sorted(drawn)
    assert all(uuid.UUID(one).version == 7 for one in drawn)


@pytest.mark.parametrize(("draw", "version"), [(ids.sorted_ids, 7), (ids.random_ids, 4)])
def test_ids_are_uuids_of_36_characters(draw, version):
    for one in draw(200):
        parsed = uuid.UUID(one)
        assert (len(one), parsed.version, parsed.variant) == (36, version, uuid.RFC_4122)


def test_random_ids_are_random_from_the_first_character():
    assert len({one[0] for one in ids.random_ids(500)}) == 16


def test_a_token_is_new_each_time():
    assert len({ids.new_token() for _ in range(1_000)}) == 1_000
