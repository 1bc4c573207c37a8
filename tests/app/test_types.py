"""Types of parameters and results: what comes back equals what was passed, in each built-in format."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import pathlib
import subprocess
import sys
import typing as t
import uuid
from dataclasses import dataclass

import attrs
import pydantic
import pytest

from millrace import App, InvalidInput, JobFailed, PayloadInvalid
from millrace.app.task import Task
from millrace.testing import on_memory
from tests.narrowing import the


class Colour(enum.Enum):
    RED = "red"


class Model(pydantic.BaseModel):
    number: int
    at: dt.datetime
    words: set[str] = set()


class Other(pydantic.BaseModel):
    name: str


V = t.TypeVar("V")


class Box(pydantic.BaseModel, t.Generic[V]):
    value: V


class Login(pydantic.BaseModel):
    password: pydantic.SecretStr


@dataclass
class Data:
    path: pathlib.Path
    models: list[Model]


@attrs.define
class Defined:
    number: int
    model: Model


class Named(t.NamedTuple):
    number: int
    path: pathlib.Path


class Typed(t.TypedDict):
    number: int
    path: pathlib.Path


MODEL = Model(number=1, at=dt.datetime(2031, 5, 2, tzinfo=dt.UTC), words={"a", "b"})
PATH = pathlib.Path("/data/in.csv")
ID = uuid.UUID(int=7)
CASES: list[tuple[t.Any, t.Any]] = [
    (Model, MODEL),
    (list[Model], [MODEL]),
    (dict[str, Model | None], {"a": MODEL, "b": None}),
    (tuple[Model, ...], (MODEL,)),
    (Model | Other, Other(name="x")),
    (list[Model | Other | None], [MODEL, Other(name="x"), None]),
    (str | Other, "text"),
    (Box[int], Box[int](value=3)),
    (Box[Model], Box[Model](value=MODEL)),
    (pydantic.HttpUrl, pydantic.HttpUrl("https://example.com/a")),
    (Data, Data(PATH, [MODEL])),
    (Defined, Defined(1, MODEL)),
    (Named, Named(1, PATH)),
    (Typed, Typed(number=1, path=PATH)),
    (Colour, Colour.RED),
    (dict[Colour, set[Colour]], {Colour.RED: {Colour.RED}}),
    (pathlib.Path, PATH),
    (pathlib.Path | None, None),
    (list[pathlib.PurePosixPath], [pathlib.PurePosixPath("a/b")]),
    (decimal.Decimal, decimal.Decimal("1.10")),
    (uuid.UUID, ID),
    (dict[uuid.UUID, Model], {ID: MODEL}),
    (dt.datetime, dt.datetime(2031, 5, 2, 3, 4, tzinfo=dt.UTC)),
    (dt.date, dt.date(2031, 5, 2)),
    (dt.time, dt.time(3, 4, 5)),
    (dt.timedelta, dt.timedelta(days=1, milliseconds=2)),
    (set[int], {1, 2}),
    (frozenset[str], frozenset({"a"})),
    (tuple[int, str], (1, "a")),
    (int | str | None, "a"),
]


def echo_of(kind: t.Any, serde: str, *, default: bool = False) -> Task[..., t.Any]:
    def echo(value: t.Any) -> t.Any:
        return value

    echo.__annotations__ = {"value": kind, "return": kind}
    if default:
        echo.__defaults__ = (None,)
    return App("memory://").task(serde=serde)(echo)


@pytest.mark.parametrize("serde", ["json", "msgpack"])
@pytest.mark.parametrize(("kind", "value"), CASES, ids=lambda one: getattr(one, "__name__", str(one))[:40])
def test_a_parameter_and_a_result_come_back_as_they_were_passed(kind: t.Any, value: t.Any, serde: str) -> None:
    for default in (False, True):
        task = echo_of(kind, serde, default=default)
        spec = task.spec(value)
        arguments = task.load(spec.payload, spec.serde)
        result = task.load_result(task.dump_result(value))
        assert arguments == {"value": value}
        assert result == value
        assert type(arguments["value"]) is type(result) is type(value)


async def test_the_handle_of_a_task_that_returns_a_model_answers_the_model() -> None:
    app = App("memory://")

    @app.task
    async def later(model: Model, days: int = 1) -> Model:
        return model.model_copy(update={"number": model.number + days})

    @app.task
    def both(models: list[Model]) -> dict[str, list[Model]]:
        return {"models": models}

    async with app.worker():
        job = await later.enqueue(MODEL)
        assert await job.result(wait=30) == MODEL.model_copy(update={"number": 2})
        assert await both.call([MODEL]) == {"models": [MODEL]}
        [listed] = [one async for one in app.jobs.find(task="later")]
        assert (listed.args, listed.result.number) == ({"model": MODEL}, 2)


async def test_many_models_are_enqueued_as_items_and_as_dicts() -> None:
    app = App("memory://")

    @app.task
    async def keep(model: Model) -> None: ...

    plain = {"number": "1", "at": "2031-05-02T00:00:00Z", "words": ["a", "b"]}
    first, second = await keep.enqueue_many([(MODEL,), {"model": plain}])
    statuses = [the(await first.status()), the(await second.status())]
    assert [status.args for status in statuses] == [{"model": MODEL}] * 2


def test_a_payload_that_a_model_refuses_names_the_field_and_does_not_show_the_value() -> None:
    task = echo_of(Model, "json")
    with pytest.raises(PayloadInvalid) as failed:
        task.spec({"number": "secret", "at": "2031-05-02"})
    assert "parameter 'value': number: Input should be a valid integer" in str(failed.value)
    assert "secret" not in str(failed.value)


def test_a_model_that_its_json_would_change_is_refused() -> None:
    with pytest.raises(PayloadInvalid, match="would change when it is stored"):
        echo_of(Login, "json").spec(Login(password=pydantic.SecretStr("x")))
    with pytest.raises(PayloadInvalid, match="nan, which JSON cannot represent"):
        echo_of(Box[float], "json").spec(Box[float](value=float("nan")))


class Unknown:
    """A class of which msgspec and pydantic know nothing."""


def test_a_result_type_that_cannot_be_stored_is_refused_if_the_result_is_kept() -> None:
    app = App("memory://")

    def returns(url: str) -> Unknown:
        return Unknown()

    with pytest.raises(InvalidInput, match=r"result: .*Unknown.* cannot be stored.*set keep_result=0"):
        app.task(returns)
    task = app.task(keep_result=0)(returns)
    with pytest.raises(InvalidInput, match="keep_result must be 0"):
        task.options(keep_result="1h")


async def test_a_task_without_results_may_return_anything() -> None:
    app = App("memory://")

    @app.task(keep_result=0)
    def returns() -> Unknown:
        return Unknown()

    with on_memory(app) as mill:
        job = await returns.enqueue()
        await mill.drain()
        assert mill.job(job).state == "completed"


async def test_a_model_that_cannot_be_stored_as_a_result_buries_the_job_at_once() -> None:
    app = App("memory://")
    runs: list[int] = []

    @app.task
    async def login() -> Login:
        runs.append(1)
        return Login(password=pydantic.SecretStr("x"))

    async with app.worker():
        job = await login.enqueue()
        with pytest.raises(JobFailed, match="Login would change when it is stored"):
            await job.result(wait=30)
    assert runs == [1]
    assert the(await job.status()).reason == "result_invalid"


def test_importing_and_using_millrace_does_not_import_pydantic() -> None:
    program = (
        "import sys, asyncio, pathlib\n"
        "from millrace import App\n"
        "app = App('memory://')\n"
        "def size(path: pathlib.Path) -> pathlib.Path | None: return path\n"
        "size = app.task(size)\n"
        "async def main():\n"
        "    async with app.worker():\n"
        "        print(await size.call(pathlib.Path('a/b')))\n"
        "asyncio.run(main())\n"
        "print([name for name in sys.modules if name.startswith(('pydantic', 'attr'))])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.splitlines() == ["a/b", "[]"]
