"""Batch tasks that take tables: one row for each job, and each row ends on its own."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict
from uuid import UUID

import msgspec
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from millrace import App, Bury, Context, FrameTask, InvalidInput, PayloadInvalid, Retry, RetryPolicy, Snooze, State
from millrace.domain.request import Cancelled
from millrace.testing import run
from tests.narrowing import the
from tests.object.stores import a_quick_folder
from tests.worker.stage import Stage, until, virtual


@dataclass
class Reading:
    sensor: str
    value: float
    tags: list[str] = field(default_factory=list)
    unit: str = "°C"
    count: int | None = None


def readings(n: int) -> list[dict[str, Any]]:
    return [{"sensor": f"s{index}", "value": float(index)} for index in range(n)]


# ── what a handler gets ───────────────────────────────────────────────────────────────────────


@virtual
async def test_jobs_come_as_one_arrow_table_with_a_column_for_each_parameter(stage: Stage):
    tables: list[pa.Table] = []

    @stage.app.batch_task(frame="arrow", row=Reading, max_rows=100)
    async def score(table: pa.Table) -> pa.Table:
        tables.append(table)
        return table.select(["job_id"]).append_column("result", pc.multiply(table["value"], 2.0))

    answers = [await score.enqueue(**one) for one in readings(250)]
    await stage.burst(slots=4)

    assert isinstance(score, FrameTask)
    assert [table.num_rows for table in tables] == [100, 100, 50]
    assert tables[0].schema == pa.schema(
        [
            pa.field("job_id", pa.string(), nullable=False),
            pa.field("sensor", pa.string(), nullable=False),
            pa.field("value", pa.float64(), nullable=False),
            pa.field("tags", pa.list_(pa.string()), nullable=False),
            pa.field("unit", pa.string(), nullable=False),
            pa.field("count", pa.int64()),
        ]
    )
    assert tables[0]["job_id"].to_pylist() == [answer.id for answer in answers[:100]]
    assert tables[0].slice(3, 1).to_pylist()[0] | {"job_id": ""} == {
        "job_id": "",
        "sensor": "s3",
        "value": 3.0,
        "tags": [],
        "unit": "°C",
        "count": None,
    }
    jobs = [await stage.job(answer.id) for answer in answers]
    assert [score.load_result(job.result) for job in jobs] == [2.0 * index for index in range(250)]
    assert jobs[0].payload == b'{"sensor":"s0","value":0.0}'  # a default stays with the code


@virtual
async def test_jobs_come_as_a_pandas_frame_whose_gaps_do_not_change_a_columns_kind(stage: Stage):
    seen: dict[str, str] = {}

    @stage.app.batch_task(frame="pandas", row=Reading)
    async def score(frame: pd.DataFrame) -> pd.Series:
        seen.update({name: str(kind) for name, kind in frame.dtypes.items()})
        assert list(frame["count"].fillna(0)) == [0, 2**60 + 1]
        return frame["value"] + 1

    answers = [await score.enqueue("a", 1.0), await score.enqueue("b", 2.0, count=2**60 + 1)]
    await stage.burst()

    assert seen == {
        "job_id": "object",
        "sensor": "object",
        "value": "float64",
        "tags": "object",
        "unit": "object",
        "count": "Int64",
    }
    assert [(await stage.job(answer.id)).result for answer in answers] == [b"2.0", b"3.0"]


class Kind(StrEnum):
    HOT = "hot"


class Point(msgspec.Struct):
    x: float
    y: float


class Sample(msgspec.Struct):
    at: datetime
    price: Decimal
    kind: Kind
    mode: Literal["fast", "safe"]
    where: Point
    weights: dict[str, float]
    owner: UUID
    data: bytes = b""


@virtual
async def test_rich_types_become_columns_of_their_kind(stage: Stage):
    rows: list[dict[str, Any]] = []
    schemas: list[pa.Schema] = []

    @stage.app.batch_task(frame="arrow", row=Sample)
    async def store(table: pa.Table) -> None:
        rows.extend(table.to_pylist())
        schemas.append(table.schema)

    owner = UUID(int=7)
    moment = datetime(2026, 11, 15, 12, tzinfo=UTC)
    await store.enqueue(
        at=moment,
        price=Decimal("1.50"),
        kind=Kind.HOT,
        mode="fast",
        where=Point(1.0, 2.0),
        weights={"a": 1.0},
        owner=owner,
        data=b"\x00\xff",
    )
    await stage.burst()

    [row] = rows
    assert row | {"job_id": ""} == {
        "job_id": "",
        "at": moment,
        "price": Decimal("1.500000000000000000"),
        "kind": "hot",
        "mode": "fast",
        "where": {"x": 1.0, "y": 2.0},
        "weights": [("a", 1.0)],
        "owner": str(owner),
        "data": b"\x00\xff",
    }
    assert schemas[0].field("at").type == pa.timestamp("us", tz="UTC")
    assert schemas[0].field("where").type == pa.struct([("x", pa.float64()), ("y", pa.float64())])


class Optional(TypedDict):
    name: str
    age: NotRequired[int | None]


def by_function(name: str, age: int | None = None) -> None: ...


SCHEMA = pa.schema([pa.field("name", pa.string(), nullable=False), pa.field("age", pa.int16())])


@pytest.mark.parametrize("row", [Optional, by_function, {"name": str, "age": int | None}, SCHEMA])
def test_columns_may_be_declared_in_several_ways(row: Any):
    @virtual
    async def story(stage: Stage):
        seen: list[dict[str, Any]] = []

        @stage.app.batch_task(frame="arrow", row=row)
        async def meet(table: pa.Table) -> None:
            seen.extend(table.to_pylist())

        job = await meet.enqueue(name="ada", age=None)
        await stage.burst()

        assert seen == [{"job_id": job.id, "name": "ada", "age": None}]
        with pytest.raises(PayloadInvalid, match="name"):
            await meet.enqueue(name=7, age=None)
        with pytest.raises(PayloadInvalid):
            await meet.enqueue(name="ada", age=None, shoe=44)

    story()


# ── how rows end ──────────────────────────────────────────────────────────────────────────────


@virtual
async def test_each_row_ends_as_its_own_answer_says(stage: Stage):
    @stage.app.batch_task(frame="pandas", row={"n": int}, max_attempts=3)
    async def work(frame: pd.DataFrame) -> list[Any]:
        ends: list[Any] = ["fine", None, Retry("later", after=60), Snooze(30), Bury("never"), ValueError("odd")]
        return [ends[number] for number in frame["n"]]

    answers = [await work.enqueue(n=n) for n in range(6)]
    await stage.burst()
    fine, none, retried, snoozed, buried, failed = [await stage.job(answer.id) for answer in answers]

    assert (fine.result, none.result, none.state) == (b'"fine"', b"null", State.COMPLETED)
    assert (retried.state, retried.failures) == (State.WAITING, 1)
    assert (snoozed.snoozes, snoozed.failures) == (1, 0)
    assert (buried.state, buried.reason) == (State.DEAD, "explicit_fail")
    assert failed.error is not None and (failed.error.type, failed.failures) == ("ValueError", 1)


@pytest.mark.parametrize("frame", ["arrow", "pandas"])
def test_a_row_with_an_error_fails_alone_and_a_row_that_is_missing_fails_with_the_reason(frame: Any):
    @virtual
    async def story(stage: Stage):
        @stage.app.batch_task(frame=frame, row={"n": int}, max_attempts=1)
        async def work(table: Any) -> Any:
            ids = list(table["job_id"]) if frame == "pandas" else table["job_id"].to_pylist()
            said = {
                "job_id": [ids[3], ids[0], ids[1], ids[4], ids[4], "a stranger"],
                "result": [3, 0, 1, 4, 4, 9],
                "error": [None, None, "one is odd", None, None, None],
            }
            return pd.DataFrame(said) if frame == "pandas" else pa.table(said)

        answers = [await work.enqueue(n=n) for n in range(5)]
        await stage.burst()
        jobs = [await stage.job(answer.id) for answer in answers]

        assert [job.result for job in jobs] == [b"0", None, None, b"3", None]
        assert [job.error and job.error.message for job in jobs] == [
            None,
            "one is odd",
            f"the table that the batch handler returned has no row for job {jobs[2].id!r}",
            None,
            f"the table that the batch handler returned has 2 rows for job {jobs[4].id!r}",
        ]

    story()


@virtual
async def test_columns_without_a_name_of_their_own_are_the_result(stage: Stage):
    @stage.app.batch_task(frame="arrow", row={"n": int})
    async def work(table: pa.Table) -> pa.Table:
        return pa.table({"double": pc.multiply(table["n"], 2), "half": pc.divide(table["n"], 2)})

    answers = [await work.enqueue(n=n) for n in (2, 4)]
    await stage.burst()

    results = [work.load_result((await stage.job(answer.id)).result) for answer in answers]
    assert results == [{"double": 4, "half": 1}, {"double": 8, "half": 2}]


@virtual
async def test_a_frame_that_was_sorted_is_read_by_its_index(stage: Stage):
    @stage.app.batch_task(frame="pandas", row={"n": int})
    async def work(frame: pd.DataFrame) -> pd.DataFrame:
        frame["result"] = frame["n"] * 10
        return frame.sort_values("n")[["result"]]

    answers = [await work.enqueue(n=n) for n in (3, 1, 2)]
    await stage.burst()

    assert [(await stage.job(answer.id)).result for answer in answers] == [b"30", b"10", b"20"]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda table: table.slice(1), "got 3 rows and returned 2"),
        (lambda table: pa.table({"result": [1]}), "got 3 rows and returned 1"),
        (lambda table: [1], "got 3 jobs and returned 1 answers"),
        (lambda table: 7, "got 3 jobs and returned 7"),
    ],
)
def test_an_answer_that_fits_no_rows_fails_each_with_the_reason(answer: Any, words: str):
    @virtual
    async def story(stage: Stage):
        @stage.app.batch_task(frame="arrow", row={"n": int}, max_attempts=1)
        async def work(table: pa.Table) -> Any:
            return answer(table.drop_columns(["job_id"]))

        answers = [await work.enqueue(n=n) for n in range(3)]
        await stage.burst()

        for one in answers:
            job = await stage.job(one.id)
            assert job.error is not None and words in job.error.message

    story()


@pytest.mark.parametrize("answer", [pa.array([7, None]), pd.Series([7.0, None]), pa.chunked_array([[7], [None]])])
def test_a_column_alone_holds_the_results(answer: Any):
    @virtual
    async def story(stage: Stage):
        @stage.app.batch_task(frame="arrow", row={"n": int})
        async def work(table: pa.Table) -> Any:
            return answer

        answers = [await work.enqueue(n=n) for n in range(2)]
        await stage.burst()

        results = [work.load_result((await stage.job(one.id)).result) for one in answers]
        assert results == [7, None]

    story()


@virtual
async def test_a_handler_that_raises_fails_every_row_and_each_has_its_own_budget(stage: Stage):
    @stage.app.batch_task(frame="arrow", row={"n": int}, retry=RetryPolicy(initial=100), max_attempts=2)
    async def work(table: pa.Table) -> None:
        raise ConnectionError("the model is away")

    answers = [await work.enqueue(n=n) for n in range(3)]
    await stage.burst()
    assert {(await stage.job(one.id)).failures for one in answers} == {1}
    await asyncio.sleep(60)
    await stage.burst()

    jobs = [await stage.job(one.id) for one in answers]
    assert {(job.state, job.failures, job.error and job.error.message) for job in jobs} == {
        (State.DEAD, 2, "the model is away")
    }


@virtual
async def test_a_value_that_no_column_can_hold_fails_alone(stage: Stage):
    calls: list[list[int]] = []

    @stage.app.batch_task(frame="arrow", row={"n": int})
    async def work(contexts: list[Context], table: pa.Table) -> pa.Table:
        assert [ctx.id for ctx in contexts] == table["job_id"].to_pylist()
        calls.append(table["n"].to_pylist())
        return table.select(["job_id"]).append_column("result", table["n"])

    answers = [await work.enqueue(n=n) for n in (1, 2**70, 3)]
    await stage.burst()
    one, huge, three = [await stage.job(answer.id) for answer in answers]

    assert calls == [[1, 3]]
    assert (one.result, three.result) == (b"1", b"3")
    assert (huge.state, huge.reason) == (State.DEAD, "payload_invalid")
    assert huge.error is not None and "does not fit the table of task 'work'" in huge.error.message


@virtual
async def test_a_row_that_is_cancelled_while_the_batch_runs_is_cancelled_whatever_the_answer(stage: Stage):
    began = asyncio.Event()

    @stage.app.batch_task(frame="arrow", row={"n": int}, lease=3)
    async def work(table: pa.Table) -> pa.Table:
        began.set()
        await asyncio.sleep(20)
        return table.select(["job_id"]).append_column("result", table["n"])

    answers = [await work.enqueue(n=n) for n in range(3)]
    async with stage.working():
        await began.wait()
        assert await stage.store.cancel([answers[1].id], "request") == [Cancelled.REQUESTED]
        jobs = [await stage.until(answer.id) for answer in answers]

    assert [job.state for job in jobs] == [State.COMPLETED, State.CANCELLED, State.COMPLETED]
    assert {job.attempt for job in jobs} == {1}  # leases of 3 s were kept over 20 s


# ── where it runs ─────────────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def an_app(store: str, folder: Path) -> AsyncIterator[App]:
    with a_quick_folder() as quick:
        url = {
            "memory": "memory://",
            "sqlite": f"sqlite:///{folder}/jobs.db?durability=relaxed",
            "directory": f"file://{quick}?durability=relaxed",
        }[store]
        async with App(url) as app:
            yield app


@pytest.mark.parametrize("store", ["memory", "sqlite", "directory"])
async def test_rows_settle_one_by_one_on_every_store(store: str, tmp_path: Path):
    async with an_app(store, tmp_path) as app:

        @app.batch_task(frame="arrow", row=Reading, max_rows=20, max_attempts=1)
        def judge(table: pa.Table) -> pa.Table:
            values = table["value"].to_pylist()
            errors = ["not a tenth" if value % 10 else None for value in values]
            return pa.table({"job_id": table["job_id"], "result": values, "error": errors})

        answers = await judge.enqueue_many(readings(50))
        await app.worker(burst=True).run(handle_signals=False)
        jobs = [the(await app.jobs.get(answer.id)).record for answer in answers]

        assert [job.state is State.COMPLETED for job in jobs] == [not index % 10 for index in range(50)]
        assert jobs[40].result == b"40.0"
        assert {job.error.message for job in jobs if job.error} == {"not a tenth"}


async def test_a_plain_function_gets_its_table_in_a_thread_and_is_still_that_function():
    stage = Stage()

    @stage.app.batch_task(frame="arrow", row={"n": int}, linger=0)
    def double(table: pa.Table) -> list[int]:
        return [2 * n for n in table["n"].to_pylist()]

    async with stage.working():
        assert await asyncio.gather(*(double.call(n=n) for n in range(5))) == [0, 2, 4, 6, 8]

    assert double(pa.table({"n": [4]})) == [8]
    assert await run(double, n=21) == 42


async def test_a_batch_task_with_tables_runs_in_a_process_of_its_own(tmp_path: Path):
    program = tmp_path / "frames_in_a_child.py"
    program.write_text(
        "import asyncio, os\n"
        "from millrace import App\n"
        "app = App('memory://')\n"
        "@app.batch_task(frame='arrow', row={'n': int}, process=True, max_rows=10, max_attempts=1)\n"
        "def work(table):\n"
        "    return [f'{os.getpid()} {n}' if n else ValueError('zero') for n in table['n'].to_pylist()]\n"
        "async def main():\n"
        "    async with app:\n"
        "        jobs = [await work.enqueue(n=n) for n in range(3)]\n"
        "        await app.worker(burst=True, processes=1).run()\n"
        "        found = [await app.jobs.get(job) for job in jobs]\n"
        "        words = [job.result.split() for job in found[1:]]\n"
        "        print(found[0].state, found[0].error.message, words[0][1], words[1][1])\n"
        "        print(words[0][0] != str(os.getpid()))\n"
        "if __name__ == '__main__':\n"
        "    asyncio.run(main())\n"
    )

    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, check=False, timeout=580)

    assert done.stdout.split() == ["dead", "zero", "1", "2", "True"], done.stderr


# ── what is refused ───────────────────────────────────────────────────────────────────────────


class Undecided(msgspec.Struct):
    value: int | str


class Tree(msgspec.Struct):
    children: list[Tree]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"frame": "polars", "row": Reading}, 'frame="arrow" or frame="pandas", not \'polars\''),
        ({"frame": "arrow"}, "needs their columns"),
        ({"frame": "arrow", "row": 7}, "does not declare columns"),
        ({"frame": "arrow", "row": {}}, "a table needs a column"),
        ({"frame": "arrow", "row": {"job_id": str}}, "is reserved"),
        ({"frame": "arrow", "row": {"not a name": str}}, "is not a Python name"),
        ({"frame": "arrow", "row": {"x": Any}}, "the type of column 'x' does not follow"),
        ({"frame": "arrow", "row": Undecided}, "the type of column 'value' does not follow"),
        ({"frame": "arrow", "row": Tree}, "the type of column 'children' does not follow"),
        ({"frame": "arrow", "row": Reading, "max_rows": 0}, "max_rows must be a whole number of at least 1, not 0"),
        ({"frame": "arrow", "row": Reading, "size": 5}, "pass max_rows=… instead of size=…"),
        ({"row": Reading}, 'pass frame="arrow" or frame="pandas" too'),
        ({"max_rows": 5}, 'pass frame="arrow" or frame="pandas" too'),
    ],
)
def test_a_table_that_cannot_be_built_is_refused_when_it_is_declared(options: dict[str, Any], words: str):
    app = App("memory://")

    with pytest.raises(InvalidInput) as refusal:
        app.batch_task(name="work", **options)(lambda table: None)

    assert words in str(refusal.value)
    assert app.tasks == {}


def test_declaring_a_table_loads_neither_pyarrow_nor_pandas():
    code = (
        "import sys\n"
        "from millrace import App\n"
        "app = App('memory://')\n"
        "@app.batch_task(frame='pandas', row={'n': int, 'tags': list[str]})\n"
        "def work(frame): ...\n"
        "work.spec(n=1, tags=[])\n"
        "print([name for name in ('pyarrow', 'pandas', 'pyspark', 'numpy') if name in sys.modules])\n"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


@virtual
async def test_without_pyarrow_a_job_says_what_to_install(stage: Stage):
    @stage.app.batch_task(frame="arrow", row={"n": int}, max_attempts=1)
    async def work(table: Any) -> None: ...

    hidden = sys.modules["pyarrow"]
    sys.modules["pyarrow"] = None  # type: ignore[assignment]
    try:
        job = await work.enqueue(n=1)
        await stage.burst()
    finally:
        sys.modules["pyarrow"] = hidden

    error = (await stage.job(job.id)).error
    assert error is not None and "pip install 'pyspark" in error.message


@virtual
async def test_a_batch_gathers_while_it_lingers_and_runs_when_the_worker_stops(stage: Stage):
    sizes: list[int] = []

    @stage.app.batch_task(frame="arrow", row={"n": int}, linger=3600)
    async def work(table: pa.Table) -> None:
        sizes.append(table.num_rows)

    async with stage.working():
        for n in range(3):
            await work.enqueue(n=n)
        await until(lambda: len(stage.store.claims) > 0)
        await asyncio.sleep(10)
        assert sizes == []

    assert sizes == [3]
