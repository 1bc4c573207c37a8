"""Payloads are checked against the handler's annotations, at enqueue and again at run."""

import enum
import tracemalloc
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Literal, NamedTuple, TypedDict
from uuid import UUID

import msgspec
import pytest

from millrace import App, Context, InvalidInput, PayloadInvalid
from millrace.app.payloads.jsonable import refuse_unsafe
from millrace.store.memory.store import MemoryStore


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Address:
    street: str
    number: int = 1


class Node(msgspec.Struct):
    value: int
    below: "Node | None" = None


class Size(TypedDict):
    width: int


class Point(NamedTuple):
    x: float
    y: float


@pytest.fixture
def app():
    return App(MemoryStore())


def through(task, *args, **kwargs):
    """What the handler will be given for what was enqueued."""
    spec = task.spec(*args, **kwargs)
    return task.load(spec.payload, spec.serde)


@pytest.mark.parametrize("serde", ["json", "msgpack"])
@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (str, "ada"),
        (int, 2**63),
        (float, 1.5),
        (bool, True),
        (bytes, b"\x00\xff"),
        (None, None),
        (int | None, None),
        (Literal["a", "b"], "b"),
        (list[int], [1, 2]),
        (set[str], {"a"}),
        (tuple[int, str], (1, "a")),
        (dict[str, list[int]], {"a": [1]}),
        (dict[int, str], {1: "a"}),
        (datetime, datetime(2024, 2, 29, 12, tzinfo=UTC)),
        (date, date(2024, 2, 29)),
        (timedelta, timedelta(hours=1)),
        (UUID, UUID(int=7)),
        (Decimal, Decimal("1.10")),
        (Colour, Colour.RED),
        (list[Colour], [Colour.RED]),
        (Address, Address("Main", 7)),
        (dict[str, Address], {"home": Address("Main")}),
        (Node, Node(1, Node(2))),
        (Size, {"width": 3}),
        (Point, Point(1.0, 2.0)),
        (Any, {"free": [1, None, "x"]}),
    ],
)
def test_a_value_of_any_plain_type_comes_back_as_it_went(app: App, kind, value, serde):
    def handle(value): ...

    handle.__annotations__["value"] = kind
    task = app.task(name="handle", serde=serde)(handle)

    assert through(task, value) == {"value": value}
    assert through(task, value=value) == {"value": value}


def test_parameters_may_be_given_by_position_and_by_name(app: App):
    @app.task
    def send(to: str, copies: int = 1, *, urgent: bool = False): ...

    assert through(send, "ada", 2, urgent=True) == {"to": "ada", "copies": 2, "urgent": True}


def test_a_default_stays_with_the_code_and_not_in_the_payload(app: App):
    @app.task
    def send(to: str, tags: list[str] = ["a"], note: Any = None): ...  # noqa: B006

    assert send.spec("ada").payload == b'{"to":"ada"}'
    assert through(send, "ada") == {"to": "ada"}
    assert through(send, "ada", note=None) == {"to": "ada", "note": None}


def test_what_has_no_annotation_takes_anything(app: App):
    @app.task
    def send(to, copies=1): ...

    assert through(send, ["ada"], copies="two") == {"to": ["ada"], "copies": "two"}


def test_further_keywords_are_taken_by_a_handler_that_says_so(app: App):
    @app.task
    def send(to: str, **more: int): ...

    assert through(send, "ada", size=1, weight=2) == {"to": "ada", "size": 1, "weight": 2}
    with pytest.raises(PayloadInvalid, match="task 'send': parameter 'size': Expected int, got str"):
        send.spec("ada", size="big")


def test_a_context_is_no_part_of_the_payload(app: App):
    @app.task
    def send(ctx: Context, to: str): ...

    @app.task
    def quoted(context: "Context", to: str): ...

    assert (send.context_parameter, quoted.context_parameter) == ("ctx", "context")
    assert through(send, "ada") == {"to": "ada"}
    assert through(quoted, to="ada") == {"to": "ada"}
    with pytest.raises(PayloadInvalid, match="no parameter 'ctx'"):
        send.spec(ctx=1, to="ada")


# ── what is refused at enqueue ────────────────────────────────────────────────────────────────


HALF_AN_ADDRESS = Address("Main", "seven")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("args", "kwargs", "says"),
    [
        ((), {}, "task 'send' needs parameter 'to', which is missing"),
        ((), {"to": 7}, "task 'send': parameter 'to': Expected str, got int"),
        (("ada", "two"), {}, "task 'send': parameter 'copies': Expected int, got str"),
        ((b"ada",), {}, "task 'send': parameter 'to': Expected str, got bytes"),
        (("ada",), {"cc": "bob"}, "task 'send' has no parameter 'cc'; its parameters are: to, copies, home"),
        (("ada", 1, None, 4), {}, "task 'send' takes 3 parameters by position, not 4"),
        (("ada",), {"to": "bob"}, "task 'send': parameter 'to' is passed twice"),
        (("ada",), {"home": HALF_AN_ADDRESS}, "task 'send': parameter 'home.number': Expected int, got str"),
        (("\ud800",), {}, "task 'send'.*surrogates"),
        (("ada",), {"home": object()}, "task 'send'.*object"),
    ],
)
def test_a_payload_that_does_not_fit_is_refused_with_the_name_of_the_parameter(app: App, args, kwargs, says):
    @app.task
    def send(to: str, copies: int = 1, home: Address | None = None): ...

    with pytest.raises(PayloadInvalid, match=says):
        send.spec(*args, **kwargs)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("kind", [float, float | None, list[float | None], Any, dict[str, Any], Point])
def test_json_refuses_numbers_that_it_would_write_as_null(app: App, kind, bad):
    def measure(value): ...

    measure.__annotations__["value"] = kind
    task = app.task(measure)
    value = {float: bad, float | None: bad, Any: bad, Point: Point(1.0, bad)}.get(kind)
    if value is None:
        value = [1.0, None, bad] if kind == list[float | None] else {"a": [{"b": bad}]}

    with pytest.raises(PayloadInvalid, match=r"parameter 'value.*JSON cannot represent.*msgpack"):
        task.spec(value)


def test_msgpack_takes_the_numbers_that_json_refuses(app: App):
    @app.task(serde="msgpack")
    def measure(value: float): ...

    assert through(measure, float("inf")) == {"value": float("inf")}


@pytest.mark.parametrize("serde", ["json", "msgpack"])
@pytest.mark.parametrize("kind", [Any, Node])
def test_nesting_is_bounded(app: App, kind, serde):
    def nest(value): ...

    def nested(levels: int) -> Any:
        value: Any = Node(0) if kind is Node else []
        for _ in range(levels - 1):
            value = Node(0, value) if kind is Node else [value]
        return value

    nest.__annotations__["value"] = kind
    task = app.task(serde=serde)(nest)

    assert through(task, nested(63))  # the payload itself is the 64th level
    for levels in (64, 200, 100_000):
        if kind is Any or levels < 1_000:
            with pytest.raises(PayloadInvalid, match="nested deeper than 64 levels"):
                task.spec(nested(levels))


def test_looking_at_a_payload_takes_memory_in_proportion_to_it():
    """A path in words for each of many lists under a long name would take a thousand times the payload's size."""
    value: dict[str, list[list[int]]] = {"k" * 20_000: [[] for _ in range(20_000)]}
    tracemalloc.start()
    refuse_unsafe("the payload", value, finite=True, keys=True)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 200 * len(msgspec.json.encode(value))
    with pytest.raises(PayloadInvalid, match=r"parameter 'k{49}…\[1\]\.b' is nan") as told:
        refuse_unsafe("the payload", {"k" * 20_000: [[], {"b": float("nan")}]}, finite=True, keys=False)
    assert len(str(told.value)) < 300


def test_data_that_holds_itself_is_refused(app: App):
    @app.task
    def nest(value): ...

    loop: list[Any] = []
    loop.append(loop)

    with pytest.raises(PayloadInvalid, match="or contains itself"):
        nest.spec(loop)


def test_a_key_that_would_come_back_as_text_is_refused(app: App):
    @app.task
    def count(votes): ...

    with pytest.raises(PayloadInvalid, match=r"parameter 'votes\.of' has the key 1, .*dict\[int"):
        count.spec({"of": {1: "one"}})


def test_a_payload_above_1_mib_is_refused_before_any_io_and_a_large_one_warns_once(app: App):
    """X2: the same error on every store."""

    @app.task
    def send(text: str): ...

    with pytest.raises(PayloadInvalid, match=r"task 'send': the payload has 1,048,577 bytes.*reference"):
        send.spec("x" * (2**20 + 1 - len('{"text":""}')))
    with pytest.warns(UserWarning, match="task 'send': a payload of .* bytes is slow"):
        send.spec("x" * (2**20 - len('{"text":""}')))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        send.spec("x" * 300_000)


# ── what is refused at run ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        (b"", "truncated"),
        (b"[]", "Expected object, got array"),
        (b'{"to":7}', "parameter 'to': Expected str, got int"),
        (b"{}", "missing required field to"),
        (b'{"to":"ada","cc":1}', "unknown field cc"),
        (b'{"to":"ada"', "truncated"),
    ],
)
def test_a_stored_payload_that_does_not_fit_is_refused(app: App, payload, says):
    @app.task
    def send(to: str): ...

    with pytest.raises(PayloadInvalid, match=f"(?i)the payload does not fit task 'send': .*{says}"):
        send.load(payload, "json")


def test_a_stored_payload_without_bottom_is_refused(app: App):
    @app.task
    def nest(value): ...

    with pytest.raises(PayloadInvalid, match="does not fit task 'nest'"):
        nest.load(b'{"value":' + b"[" * 100_000, "json")


# ── what is refused at registration ───────────────────────────────────────────────────────────


def test_a_handler_that_no_payload_could_serve_is_refused_when_it_is_registered(app: App):
    def star(*names: str): ...
    def positional(a: int, /): ...
    def late(a: int, ctx: Context): ...
    def twice(ctx: Context, other: Context): ...
    def foreign(when: complex): ...
    def deep(items: list[dict[str, object]]): ...
    def unknown(a: "Nowhere"): ...  # type: ignore[name-defined]  # noqa: F821
    def unlike(a: datetime | date): ...
    def gives() -> complex:
        return 1j

    def generates():
        yield 1

    refused: list[tuple[Callable[..., object], str]] = [
        (star, r"\*names cannot be one. Take a list"),
        (positional, "'a' is positional-only"),
        (late, "Context must be the first parameter"),
        (twice, "Context must be the first parameter"),
        (foreign, "task 'foreign', parameter 'when': <class 'complex'> cannot be stored"),
        (deep, "parameter 'items': <class 'object'> cannot be stored"),
        (unknown, r"parameter 'a': its annotation 'Nowhere' cannot be resolved.*top of the module"),
        (unlike, "task 'unlike'"),
        (gives, "task 'gives', result: <class 'complex'>"),
        (generates, "generator"),
    ]
    for handler, says in refused:
        with pytest.raises(InvalidInput, match=says):
            app.task(handler)

    assert app.tasks == {}
