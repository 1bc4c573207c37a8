"""Rows as specs: payloads, options and ids, without Spark."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.domain.errors import InvalidInput
from millrace.domain.rules.check import MAX_PAYLOAD
from millrace.spark.options import read_options
from millrace.spark.sink.ids import Ordinals, Scope, job_id
from millrace.spark.sink.plan import read_plan
from millrace.spark.sink.writer import describe_row, in_chunks
from tests.spark.sinking import APP, made, maker, payloads, rows, schema

pytestmark = pytest.mark.usefixtures("spark")

NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)


# ── payloads ──────────────────────────────────────────────────────────────────────────────────


def test_every_type_of_column_has_a_place_in_a_payload():
    ddl = (
        "i int, l bigint, f double, s string, b boolean, d date, t timestamp, n timestamp_ntz, "
        "m decimal(10, 2), x binary, g interval day to second, a array<int>, k map<string, double>, "
        "r struct<at: timestamp, list: array<struct<y: string>>>, v void"
    )
    values = (
        *(7, 2**60, 0.25, 'ä\n"', True, date(2026, 11, 15), NOON, NOON.replace(tzinfo=None), Decimal("12.50")),
        *(b"\x00\xff", timedelta(hours=1), [1, None], [("k", 1.5)], {"at": NOON, "list": [{"y": "z"}]}, None),
    )

    [spec] = made(ddl, values, zone="Europe/Berlin").specs

    assert spec.payload.decode() == (
        '{"i":7,"l":1152921504606846976,"f":0.25,"s":"ä\\n\\"","b":true,"d":"2026-11-15","t":"2026-11-15T12:00:00Z",'
        '"n":"2026-11-15T12:00:00","m":"12.50","x":"AP8=","g":"PT3600S","a":[1,null],"k":{"k":1.5},'
        '"r":{"at":"2026-11-15T12:00:00Z","list":[{"y":"z"}]},"v":null}'
    )


def test_nulls_stay_nulls_and_odd_column_names_stay_as_they_are():
    found = made("`a b` int, `1` string, self double", (None, None, None), (1, "x", 2.5))

    assert payloads(found.specs) == [{"a b": None, "1": None, "self": None}, {"a b": 1, "1": "x", "self": 2.5}]


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), float("-inf")])
def test_numbers_that_json_lacks_are_refused_wherever_they_hide(odd: float):
    ddl = "f double, k map<string, double>, r struct<a: array<float>>"
    fine = (0.5, [("k", 1.0)], {"a": [1.0]})

    found = made(ddl, fine, (odd, *fine[1:]), (0.5, [("k", odd)], None), (None, None, {"a": [None, odd]}), fine)

    assert list(found.unfit) == [1, 2, 3]
    assert all("JSON cannot represent" in reason for reason in found.unfit.values())
    assert "column 'f'" in found.unfit[1]
    assert len(found.specs) == 2


def test_a_column_of_json_text_is_the_payload():
    given_text = ['{"n": 1}', " {} ", "[1]", "{", None, '{"a": NaN}', '{"a":' * 70 + "1" + "}" * 70]

    found = made("p string, noise int", *((text, 1) for text in given_text), payloadColumn="P")

    assert [spec.payload for spec in found.specs] == [b'{"n": 1}', b" {} "]
    assert list(found.unfit) == [2, 3, 4, 5, 6]
    assert "must be a JSON object" in found.unfit[2]
    assert "is not JSON" in found.unfit[3] and "is not JSON" in found.unfit[5]
    assert "is null" in found.unfit[4]
    assert "deeper than 64" in found.unfit[6]


def test_a_payload_that_is_too_large_is_refused_alone():
    found = made("s string", ("x" * MAX_PAYLOAD,), ("y",))

    assert "at most 1,048,576" in found.unfit[0]
    assert payloads(found.specs) == [{"s": "y"}]


def test_columns_of_options_leave_the_payload_and_those_of_ids_stay():
    ddl, row = "n int, q string, u string", (1, "mail", "x")

    [spec] = made(ddl, row, queueColumn="q", idColumns="n, u").specs
    assert payloads([spec]) == [{"n": 1, "u": "x"}]

    [spec] = made(ddl, row, queueColumn="q", payloadColumns="q,n").specs
    assert payloads([spec]) == [{"q": "mail", "n": 1}]


# ── options of each row ───────────────────────────────────────────────────────────────────────


def test_options_hold_for_all_rows_and_columns_for_each():
    ddl = "n int, t string, q string, p int, d string, g bigint, k string, h map<string, string>"
    columns: dict[str, Any] = {
        f"{name}Column": name[0] for name in ("task", "queue", "priority", "delay", "group", "key", "headers")
    }
    found = made(
        ddl,
        (1, "pack", "parcels", 3, "2m", 17, "once", [("trace", "x")]),
        (2, None, None, None, None, None, None, None),
        **columns,
        queue="mail",
        priority=9,
        delay="90",
        maxAttempts=2,
        timeout="5s",
        expires="1h",
        keyScope="window",
        keyWindow="1d",
        onHit="extend",
    )

    first, second = found.specs
    assert (first.task, first.queue, first.priority, first.delay) == ("pack", "parcels", 3, 120_000)
    assert (first.group, first.key, first.headers) == ("17", "once", {"trace": "x"})
    assert (second.task, second.queue, second.priority, second.delay) == ("send", "mail", 9, 90_000)
    assert (second.group, second.key, second.headers) == (None, None, None)
    assert (first.scope, first.window, first.on_hit) == ("window", 86_400_000, "extend")
    assert (second.scope, second.window, second.on_hit) == ("live", 0, "keep")
    for spec in found.specs:
        assert (spec.max_attempts, spec.timeout, spec.expires, spec.reuse) == (2, 5_000, 3_600_000, False)


@pytest.mark.parametrize(
    ("kind", "value", "milliseconds"),
    [
        ("int", 90, 90_000),
        ("double", 0.25, 250),
        ("decimal(5,1)", Decimal("1.5"), 1_500),
        ("string", "1h30m", 5_400_000),
        ("string", "90", 90_000),
        ("interval day to second", timedelta(minutes=2), 120_000),
    ],
)
def test_delays_are_written_as_everywhere(kind: str, value: Any, milliseconds: int):
    [spec] = made(f"d {kind}", (value,), delayColumn="d").specs

    assert spec.delay == milliseconds


def test_a_job_runs_at_its_instant_by_the_clock_of_the_store():
    now = round(NOON.timestamp() * 1000)
    instants = [(NOON + timedelta(minutes=1),), (NOON - timedelta(days=1),), (None,)]

    found = made("at timestamp", *instants, now=now, runAtColumn="at", delay="3s", zone="Asia/Tokyo")

    assert [spec.delay for spec in found.specs] == [60_000, 0, 3_000]


def test_a_row_with_a_value_that_no_job_may_have_is_unfit():
    ddl = "n int, p int, q string, d string, g string"
    fine = (1, 1, "mail", "1s", "g")
    bad = [
        (1, 16, *fine[2:]),
        (1, 1, "no good", "1s", "g"),
        (1, 1, "mail", "soon", "g"),
        (1, 1, "mail", "1s", "x" * 201),
    ]
    columns: dict[str, Any] = {"priorityColumn": "p", "queueColumn": "q", "delayColumn": "d", "groupColumn": "g"}

    found = made(ddl, fine, *bad, **columns)

    assert [
        next(word for word in ("priority", "queue", "duration", "group") if word in reason)
        for reason in found.unfit.values()
    ] == [
        "priority",
        "queue",
        "duration",
        "group",
    ]
    assert list(found.unfit) == [1, 2, 3, 4]
    assert len(found.specs) == 1


def test_a_row_without_a_task_is_unfit():
    options: dict[str, Any] = {"taskColumn": "t", "task": "send"}
    assert [spec.task for spec in made("t string", ("pack",), (None,), **options).specs] == ["pack", "send"]

    found = made("t string", ("not a name",), ("pack",), **options)
    assert "task name 'not a name' is not allowed" in found.unfit[0]
    assert [spec.task for spec in found.specs] == ["pack"]


# ── by the app's own tasks ────────────────────────────────────────────────────────────────────


def test_the_annotations_of_the_task_check_each_row_and_its_options_apply():
    found = made("to string, n string", ("ada", "1"), app=APP)
    assert found.unfit == {
        0: "task 'send': parameter 'n': Expected int, got str. Pass a value that fits the annotation."
    }

    found = made("to string, n int, at timestamp", ("ada", 1, NOON), (None, 2, NOON), ("bob", 3, None), app=APP)
    assert payloads(found.specs) == [
        {"to": "ada", "n": 1, "at": "2026-11-15T12:00:00Z"},
        {"to": "bob", "n": 3, "at": None},
    ]
    assert "parameter 'to'" in found.unfit[1]
    for spec in found.specs:
        assert (spec.queue, spec.priority, spec.max_attempts, spec.timeout) == ("mail", 7, 2, 20_000)
        assert not spec.reuse


def test_options_of_the_write_go_before_those_of_the_task():
    [spec] = made("to string, n int", ("ada", 1), app=APP, priority=1, queue="slow").specs

    assert (spec.priority, spec.queue, spec.max_attempts) == (1, "slow", 2)


def test_json_text_is_checked_by_the_task_too():
    found = made("p string", ('{"to": "ada", "n": 1}',), ('{"to": "ada"}',), app=APP, payloadColumn="p")

    assert payloads(found.specs) == [{"to": "ada", "n": 1}]
    assert "needs parameter 'n'" in found.unfit[1]


def test_columns_that_the_task_does_not_take_are_named():
    found = made("to string, n int, cc string", ("ada", 1, "x"), app=APP)

    assert "task 'send' has no parameter 'cc'; its parameters are: to, n, at, copies" in found.unfit[0]


def test_a_row_is_the_item_of_a_batch_task():
    [spec] = made("n int, s string", (1, "x"), app=APP, task="many").specs
    assert payloads([spec]) == [{"item": {"n": 1, "s": "x"}}]

    [spec] = made("item map<string, int>", ([("n", 1)],), app=APP, task="many").specs
    assert payloads([spec]) == [{"item": {"n": 1}}]


def test_the_partition_of_a_pool_is_that_of_its_app():
    [spec] = made("n int", (5,), app=APP, task="laned").specs

    assert (spec.queue, spec.group) == ("laned", "5")
    with pytest.raises(InvalidInput, match="; remove queueColumn"):
        maker("n int, q string", app=APP, task="laned", queueColumn="q")._targets["laned"]


def test_a_task_that_the_app_lacks_is_named():
    found = made("to string, t string", ("ada", "sent"), app=APP, taskColumn="t")

    assert "sent" in found.unfit[0]


@pytest.mark.parametrize(
    ("app", "complaint"),
    [
        ("tests.spark.sink_app", "as module:name"),
        ("tests.spark.nowhere:app", "importing 'tests.spark.nowhere' failed"),
        ("tests.spark.sink_app:send", "not a Millrace App"),
        ("tests.spark.sink_app:none", "not a Millrace App"),
    ],
)
def test_an_app_that_is_not_there_is_refused(app: str, complaint: str):
    with pytest.raises(InvalidInput, match=complaint):
        maker("n int", app=app)


# ── ids ───────────────────────────────────────────────────────────────────────────────────────

SOME = [(1, "a"), (2, "b"), (1, "a"), (3, None), (1, "a"), (3, None)]


def ids(values: list[tuple[Any, ...]], chunk: int = 100, **given: Any) -> list[str]:
    make = maker("n int, s string", **given)
    found = [
        make.make(rows("n int, s string", *values[at : at + chunk]), 0).specs for at in range(0, len(values), chunk)
    ]
    return [spec.id for specs in found for spec in specs]


@pytest.mark.parametrize("columns", [{}, {"groupColumn": "s"}], ids=["plain", "with options"])
def test_a_row_keeps_its_id_whatever_the_order_and_the_chunks(columns: dict[str, Any]):
    expected = sorted(ids(SOME, **columns))
    shuffler = random.Random(7)

    assert len(set(expected)) == len(SOME)
    for chunk in (1, 2, 5, 100):
        again = SOME[:]
        shuffler.shuffle(again)
        assert sorted(ids(again, chunk, **columns)) == expected


def test_other_partitions_and_other_writes_get_other_ids():
    assert not set(ids(SOME)) & set(ids(SOME, partition=1))
    assert not set(ids(SOME)) & set(ids(SOME, write="v"))
    assert not set(ids(SOME, write="w1", partition=1)) & set(ids(SOME, write="w", partition=11))


def test_unfit_rows_do_not_shift_the_ids_of_others():
    """A row with NaN looks like one with null to JSON; it must not count as its equal."""
    null, nan = (None,), (float("nan"),)

    [first] = made("f double", null, nan).specs
    [second] = made("f double", nan, null).specs

    assert first.id == second.id


def test_ids_of_one_partition_lie_side_by_side_and_partitions_beside_each_other():
    """Scattered ones make a store with an index of ids write a page of it for each job."""
    first, second = ({one[:8] for one in ids(SOME, partition=partition)} for partition in (7, 8))

    assert len(first) == len(second) == 1
    assert int(second.pop(), 16) - int(first.pop(), 16) == 1
    assert len({ids(SOME, write=f"w{number}")[0][:5] for number in range(20)}) == 20
    assert {len(one) for one in ids(SOME, partition=5_000)} == {32}


def test_chosen_columns_and_the_task_are_the_id():
    assert ids(SOME, idColumns="n") == [job_id("send", n) for n, _ in SOME]
    assert ids(SOME[:1], idColumns="s,n") == [job_id("send", "a", 1)]
    assert ids(SOME, idColumns="n", write="v", partition=3) == ids(SOME, idColumns="n")
    assert not set(ids(SOME, idColumns="n")) & set(ids(SOME, idColumns="n", task="pack"))


def test_ids_of_several_values_cannot_be_mistaken_for_each_other():
    several = [("a", "bc"), ("ab", "c"), ("abc",), ("a", "b", "c"), (1,), ("1",), (1, 2), (12,), (True,), ("a,bc",)]

    assert len({job_id("t", *values) for values in several} | {job_id("t2"), job_id("t", "2")}) == len(several) + 2


def test_ids_stay_the_same_from_release_to_release():
    """A stream that is restarted after an upgrade, or a nightly write, would else enqueue everything again."""
    assert job_id("send_email", 17, "ada", date(2026, 11, 15)) == "da4c146ced56dfb639f4760913d60469"
    assert ids([(1, "a"), (1, "a")]) == ["9e6b2000d0cffe095ea6fef0cf0c8ca5", "9e6b20004a574e923f9ddcb0a1cf93d5"]


def test_a_null_identifies_nothing():
    found = made("n int, s string", (1, "a"), (None, "a"), idColumns="n")

    assert list(found.unfit) == [1]
    assert "column 'n' is null" in found.unfit[1]


def test_the_token_tells_a_repeated_row_from_a_repeated_task():
    """So that the store answers `queued` again to a task that is run again, and `duplicate` to a second row."""
    first, second, other = made("n int", (1,), (1,), (2,), idColumns="n").specs

    assert first.id == second.id != other.id
    assert first.token != second.token
    assert [spec.token for spec in made("n int", (1,), (1,), (2,), idColumns="n").specs] == [
        first.token,
        second.token,
        other.token,
    ]
    assert made("n int", (1,), idColumns="n", write="v").specs[0].token != first.token


@given(st.lists(st.lists(st.integers(0, 12), max_size=12), max_size=8))
def test_ordinals_count_equal_rows_over_all_chunks(chunks: list[list[int]]):
    ordinals, seen = Ordinals(), Counter[int]()

    for chunk in chunks:
        expected = []
        for value in chunk:
            expected.append(seen[value])
            seen[value] += 1
        found = ordinals.next(Scope("w", 0).digests([b"%d" % value for value in chunk]))
        assert (found or [0] * len(chunk)) == expected


# ── chunks, and words ─────────────────────────────────────────────────────────────────────────


@given(st.lists(st.integers(0, 9), max_size=12), st.integers(1, 7))
def test_chunks_hold_the_same_rows_in_the_same_order(sizes: list[int], size: int):
    numbers = iter(range(1000))
    batches = [pa.record_batch({"n": pa.array([next(numbers) for _ in range(length)], pa.int64())}) for length in sizes]

    chunks = [chunk.column(0).to_pylist() for chunk in in_chunks(iter(batches), size)]

    assert [n for chunk in chunks for n in chunk] == list(range(sum(sizes)))
    assert all(len(chunk) == size for chunk in chunks[:-1])
    assert all(0 < len(chunk) <= size for chunk in chunks)


def test_the_row_at_fault_is_named_and_cut():
    batch = rows("n int, s string", (1, "x"), (2, "y" * 5_000))

    told = describe_row(batch, 1, 40, 3, "it is no good")

    assert told.startswith("row 41 of partition 3 (n=2, s='yyyy")
    assert "cannot become a job: it is no good" in told
    assert len(told) < 700


# ── what is refused on the driver ─────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("ddl", "options", "complaint"),
    [
        ("n int", {"queueColumn": "que"}, "option queueColumn names the column 'que', which is not there"),
        ("queue string", {"queueColumn": "queu"}, "queue"),
        ("p string", {"priorityColumn": "p"}, "column 'p' is string; it must be a whole number"),
        ("p double", {"idColumns": "p"}, "column 'p' is double; it must be a whole number, a decimal"),
        ("p map<string, int>", {"idColumns": "p"}, "it must be a whole number, a decimal"),
        ("p string", {"runAtColumn": "p"}, "it must be a timestamp"),
        ("h map<string, int>", {"headersColumn": "h"}, "a map of texts"),
        ("n int", {"payloadColumn": "n"}, "it must be text"),
        ("k map<int, int>", {}, "column 'k' has keys of int, and JSON has only text"),
        ("r struct<v: variant>", {}, "column 'r'.v is variant, which a payload cannot hold"),
        ("n int, n int", {}, "two columns 'n'"),
        ("n string", {"payloadColumn": "n", "payloadColumns": "n"}, "say the same thing in two ways"),
        ("d int, a timestamp", {"delayColumn": "d", "runAtColumn": "a"}, "say the same thing in two ways"),
        ("n int", {"onHit": "replace"}, "name their column by keyColumn"),
        ("k string", {"keyColumn": "k", "keyScope": "window"}, "keyScope=window and keyWindow go together"),
        ("k string", {"keyColumn": "k", "onHit": "extend"}, "needs keyScope=window and keyWindow as well"),
        ("n int", {"onInvalid": "reject"}, "onInvalid=reject and rejectPath go together"),
        ("n int", {"rejectPath": "/tmp/x"}, "onInvalid=reject and rejectPath go together"),
        ("k string", {"keyColumn": "k", "onHit": "raise"}, "one of keep, replace, extend"),
        ("n int", {"priority": "16"}, "0 to 15"),
        ("n int", {"batchSize": "10001"}, "at most 10,000"),
        ("n int", {"delay": "soon"}, "option delay is not a duration"),
        ("n int", {"keycolumn": "k", "table": "jobs"}, "option table is for batch and stream"),
    ],
)
def test_what_cannot_work_is_refused_before_any_row(ddl: str, options: dict[str, Any], complaint: str):
    with pytest.raises(InvalidInput, match=complaint.replace("(", r"\(")):
        maker(ddl, **options)


def test_a_write_without_a_task_is_refused():
    with pytest.raises(InvalidInput, match="which task are the jobs for"):
        read_plan(read_options({"url": "s3://b/p"}, "write"), schema("n int"))
