"""Serdes: JSON and msgpack are built in, others are registered (R-27)."""

import base64
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from millrace import App, InvalidInput, PayloadInvalid
from millrace.store.memory.store import MemoryStore


class Base64Json:
    """A serde of somebody's own."""

    name = "b64"

    def encode(self, value: Any, /) -> bytes:
        assert type(value) is dict or not hasattr(value, "__dict__"), "it is to see plain data only"
        return base64.b64encode(msgspec.json.encode(value))

    def decode(self, data: bytes, /) -> Any:
        return msgspec.json.decode(base64.b64decode(data, validate=True))


@dataclass
class Parcel:
    weight: float
    sent: datetime


def test_a_serde_of_ones_own_carries_payloads_and_results_with_their_types():
    app = App(MemoryStore(), serde=Base64Json())

    @app.task
    def ship(parcel: Parcel, votes: dict[int, str]) -> Parcel:
        return parcel

    parcel = Parcel(1.5, datetime(2024, 2, 29, tzinfo=UTC))
    spec = ship.spec(parcel, {1: "yes"})

    assert spec.serde == "b64"
    assert base64.b64decode(spec.payload).startswith(b'{"parcel":')
    assert ship.load(spec.payload, "b64") == {"parcel": parcel, "votes": {1: "yes"}}
    assert ship.load_result(ship.dump_result(parcel)) == parcel


def test_a_task_may_choose_its_serde_and_still_read_what_another_wrote():
    app = App(MemoryStore(), serdes=[Base64Json()])

    @app.task(serde="msgpack")
    def pack(data: bytes): ...

    @app.task(serde="b64")
    def wrap(text: str): ...

    assert pack.spec(b"\x00").payload == msgspec.msgpack.encode({"data": b"\x00"})
    assert pack.load(b'{"data":"AA=="}', "json") == {"data": b"\x00"}
    assert wrap.load(msgspec.msgpack.encode({"text": "a"}), "msgpack") == {"text": "a"}


def test_a_serde_that_fails_is_a_payload_that_cannot_be_read():
    app = App(MemoryStore(), serde=Base64Json())

    @app.task
    def wrap(text: str): ...

    with pytest.raises(PayloadInvalid, match="does not fit task 'wrap'"):
        wrap.load(b"not base64!", "b64")


def test_a_serde_must_be_known_by_name_and_names_must_be_unique():
    app = App(MemoryStore(), serdes=[Base64Json()])

    with pytest.raises(InvalidInput, match="no serde 'xml' is registered. Known are: b64, json, msgpack"):
        app.task(name="x", serde="xml")(lambda: None)
    with pytest.raises(InvalidInput, match="'b64' is registered already"):
        app.serdes.add(Base64Json())
    with pytest.raises(InvalidInput, match="is no serde"):
        App(MemoryStore(), serde=object())  # type: ignore[arg-type]

    @app.task
    def send(to: str): ...

    with pytest.raises(PayloadInvalid, match="written with serde 'xml', which this app does not know"):
        send.load(b"<to/>", "xml")


@pytest.mark.parametrize("value", [None, 0, "", [], {"a": None}, [1.5, None]])
def test_results_come_back_as_they_went_and_null_is_one_of_them(value):
    app = App(MemoryStore())

    @app.task
    def give(): ...

    assert give.load_result(give.dump_result(value)) == value


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (object(), "the result of task 'give' cannot be encoded"),
        (float("nan"), "the result of task 'give'.* is nan"),
        ({"a": [float("inf")]}, r"the result of task 'give': parameter 'a\[0\]' is inf"),
    ],
)
def test_a_result_that_cannot_be_kept_is_refused(value, says):
    app = App(MemoryStore())

    @app.task
    def give(): ...

    with pytest.raises(PayloadInvalid, match=says):
        give.dump_result(value)


def test_a_result_that_is_not_what_the_annotation_says_is_refused_where_it_is_read():
    app = App(MemoryStore())

    @app.task
    def give() -> int: ...

    with pytest.raises(PayloadInvalid, match="the result of task 'give' does not fit its return annotation"):
        give.load_result(give.dump_result("seven"))
