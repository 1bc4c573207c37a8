"""Serdes: JSON and msgpack are built in, others are registered (R-27)."""

import base64
from collections.abc import Awaitable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from millrace import App, Context, InvalidInput, PayloadInvalid
from millrace.store.memory.store import MemoryStore
from millrace.views.job_view import job_view


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
    with pytest.raises(InvalidInput, match="'b64' is already registered"):
        app.serdes.add(Base64Json())
    with pytest.raises(InvalidInput, match="is not a serde"):
        App(MemoryStore(), serde=object())  # type: ignore[arg-type]

    @app.task
    def send(to: str): ...

    with pytest.raises(PayloadInvalid, match="written with serde 'xml', which is not registered on this app"):
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
    def give() -> int:
        return 7

    with pytest.raises(PayloadInvalid, match="the result of task 'give' does not fit its return annotation"):
        give.load_result(give.dump_result("seven"))


class Msgpack2:
    """A format that can hold bytes; it counts what it is handed."""

    name = "mp2"

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def encode(self, value: Any, /) -> bytes:
        self.seen.append(value)
        return msgspec.msgpack.encode(value)

    def decode(self, data: bytes, /) -> Any:
        return msgspec.msgpack.decode(data)


def test_bytes_reach_a_serde_of_ones_own_as_they_are():
    """As base64 text they would be a third larger."""
    serde = Msgpack2()
    app = App(MemoryStore(), serde=serde)

    @app.task
    def store(picture: bytes, parts: list[bytes], more: Any = None) -> bytes:
        return picture

    picture = bytes(range(256)) * 300
    spec = store.spec(picture, [b"\x00"], {"any": b"\xff"})

    assert serde.seen == [{"picture": picture, "parts": [b"\x00"], "more": {"any": b"\xff"}}]
    assert len(spec.payload) < len(picture) + 100
    assert store.load(spec.payload, "mp2") == {"picture": picture, "parts": [b"\x00"], "more": {"any": b"\xff"}}
    assert store.load_result(store.dump_result(picture)) == picture


def test_a_serde_of_ones_own_that_writes_text_gets_bytes_back_by_the_annotation():
    app = App(MemoryStore(), serde=Base64Json())

    @app.task
    def store(picture: bytes) -> bytes:
        return picture

    assert store.load(store.spec(b"\x00\xff").payload, "b64") == {"picture": b"\x00\xff"}


async def test_results_have_a_serde_of_their_own():
    """Task before app, and what a task says of its payload alone is meant for both (R-11)."""
    app = App(MemoryStore(), result_serde="msgpack", serdes=[Base64Json()])

    @app.task
    async def usual(data: bytes) -> bytes:
        return data

    @app.task(serde="b64", result_serde="json")
    async def both(data: bytes) -> bytes:
        return data

    @app.task(serde="b64")
    async def same(data: bytes) -> bytes:
        return data

    async with app, app.worker():
        for task in (usual, both, same):
            assert await task.call(b"\x00\xff") == b"\x00\xff"
        jobs = {job.task: job.record async for job in app.jobs.find()}
        assert await app.jobs.result(jobs["usual"]) == b"\x00\xff"

    assert {name: job.spec.serde for name, job in jobs.items()} == {
        "usual": "json/msgpack",
        "both": "b64/json",
        "same": "b64",
    }
    assert jobs["usual"].payload == b'{"data":"AP8="}'
    assert jobs["usual"].result == msgspec.msgpack.encode(b"\x00\xff")
    assert jobs["both"].result == b'"AP8="'
    shown = job_view(jobs["usual"], now=0)
    assert (shown.payload, shown.serde) == ({"data": "AP8="}, "json/msgpack")


async def test_who_does_not_know_the_task_reads_its_result_with_the_results_serde():
    store = MemoryStore()
    app, other = App(store, result_serde="msgpack"), App(store)

    @app.task
    async def give() -> list[int]:
        return [1, 2]

    async with app, app.worker():
        assert await give.call() == [1, 2]
        [job] = [job async for job in app.jobs.find()]
        assert await other.jobs.result(job) == [1, 2]


class Protobuf:
    """Message classes of Protocol Buffers, as the documentation shows it."""

    name = "protobuf"

    def encode_as(self, value: Any, kind: Any, /) -> bytes:
        return bytes(value.SerializeToString())

    def decode_as(self, data: bytes, kind: Any, /) -> Any:
        return kind.FromString(data)


class Note:
    """What protoc makes, as far as a serde looks at it; the real library is not needed to test this."""

    def __init__(self, text: str) -> None:
        self.text = text

    def SerializeToString(self) -> bytes:
        return b"\x0a" + bytes([len(self.text)]) + self.text.encode()

    @classmethod
    def FromString(cls, data: bytes) -> "Note":
        if data[0] != 0x0A:
            raise ValueError("Error parsing message")
        return cls(data[2:].decode())


async def test_message_objects_are_carried_by_a_serde_that_is_handed_their_class():
    """The stored payload is the message itself: other programs can read it."""
    app = App(MemoryStore(), serde=Protobuf())

    @app.task
    async def shout(ctx: Context, note: Note) -> Note:
        return Note(note.text.upper())

    @app.task(result_serde="json")
    async def count(note: Note) -> int:
        return len(note.text)

    @app.task
    async def silent(note: Note) -> None: ...

    async with app, app.worker():
        assert (await shout.call(Note("hello"))).text == "HELLO"
        assert await count.call(note=Note("four")) == 4
        nothing: Awaitable[object] = silent.call(Note("x"))
        assert await nothing is None
        [handle, _] = await count.enqueue_many([{"note": Note("a")}, (Note("b"),)])
        [job] = [job.record async for job in app.jobs.find() if job.id == handle.id]

    assert job.payload == b"\x0a\x01a"
    assert job.spec.serde == "protobuf/json"


async def test_the_real_library_works_the_same():
    wrappers = pytest.importorskip("google.protobuf.wrappers_pb2")
    app = App(MemoryStore(), serde=Protobuf())

    def upper(note: Any) -> Any:
        return wrappers.StringValue(value=note.value.upper())

    upper.__annotations__ = {"note": wrappers.StringValue, "return": wrappers.StringValue}
    task = app.task(upper)

    async with app, app.worker():
        assert (await task.call(wrappers.StringValue(value="ada"))).value == "ADA"


def test_what_does_not_fit_a_message_is_told():
    app = App(MemoryStore(), serde=Protobuf())

    @app.task
    def send(note: Note): ...

    with pytest.raises(PayloadInvalid, match="parameter 'note': expected Note, got dict"):
        send.spec({"text": "a"})
    with pytest.raises(PayloadInvalid, match="takes one parameter, 'note'; it got nothing"):
        send.spec()
    with pytest.raises(PayloadInvalid, match="does not fit task 'send': Error parsing message"):
        send.load(b"\xff", "protobuf")
    with pytest.raises(InvalidInput, match="task 'two'.*takes one parameter .* not 2"):
        app.task(name="two")(lambda a, b: None)
    with pytest.raises(PayloadInvalid, match="only the task that declares its class can read"):
        app.serdes.decode(b"", "protobuf")
    with pytest.raises(InvalidInput, match="cannot be stored in a job"):

        @app.task(serde="json")
        def plain(note: Note): ...


async def test_batches_and_pools_take_messages_too():
    app = App(MemoryStore(), serde=Protobuf(), result_serde="json")

    @app.batch_task
    async def sizes(notes: list[Note]) -> list[int]:
        return [len(note.text) for note in notes]

    @app.pool("letters", lanes=2, partition_by=lambda note: note.text)
    async def letters(note: Note) -> str:
        return note.text

    async with app, app.worker():
        assert await sizes.call(Note("four")) == 4
        assert await letters.call(Note("ada")) == "ada"
