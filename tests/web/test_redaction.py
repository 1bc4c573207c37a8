"""One rule for what nobody is shown: payloads, results, headers, and errors that quote them."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from millrace import App, Context, InvalidInput, RetryPolicy
from millrace.app.handler.job_log import MOST_TEXT
from millrace.app.telemetry.redaction import HIDDEN, MOST, SHORTEST_PART, JobRedactor, Redaction, Secrets, words_of
from millrace.domain.outcome import CUT_END, Failure
from millrace.domain.settings import QueueSettings
from millrace.views.job_view import job_view
from tests.web.stage import Stream, Web, opened

SECRET = "hunter22-very-secret"
RULE = json.loads(Path(__file__).with_name("redaction.json").read_text(encoding="utf-8"))  # pages keep it, too


@pytest.mark.parametrize(
    ("name", "hidden"),
    [
        ("password", True),
        ("user_password", True),
        ("userPassword", True),
        ("PASSWORD", True),
        ("apiKey", True),
        ("API-Key", True),
        ("api_key_id", True),
        ("X-Api-Key", True),
        ("accessToken", True),
        ("client secret", True),
        ("Authorization", True),
        ("key", False),
        ("keyboard", False),
        ("tokens_used", False),
        ("secretary", False),
        ("compass", False),
        ("passport", False),
        ("", False),
        ("日本", False),
    ],
)
def test_a_field_is_hidden_by_the_words_of_its_name(name: str, hidden: bool):
    assert Redaction().hides(name) is hidden


@pytest.mark.parametrize(("name", "hidden"), RULE["names"])
def test_names_in_the_plural_are_hidden_and_counts_are_not(name: str, hidden: bool):
    assert Redaction().hides(name) is hidden


def test_a_count_is_hidden_when_somebody_says_so():
    assert Redaction(["max tokens"]).hides("maxTokens") and not Redaction(["max tokens"]).hides("tokens_used")


@pytest.mark.parametrize("case", RULE["texts"], ids=lambda case: case["why"])
def test_what_was_hidden_is_found_however_an_error_quotes_it(case: dict[str, Any]):
    assert Secrets(case["secrets"]).without(case["text"]) == case["shown"]


@pytest.mark.parametrize("length", [20, 15_000, 60_000])
@pytest.mark.parametrize("before", [0, 4_970, 4_985, 9_000])
def test_a_secret_is_not_told_by_halves(length: int, before: int):
    """Wherever an error was cut to its cap, no part of a secret is left at the cut."""
    secret = "".join(f"{number:04x}" for number in range(length // 4))
    try:
        raise ValueError(" " * before + secret)
    except ValueError as error:
        shown = Secrets([secret]).failure(Failure.from_exception(error))
    for text in (shown.message, shown.traceback):
        assert HIDDEN in text or "(cut)" in text
        assert not [part for at in range(0, 20, 4) if (part := secret[at : at + 8]) in text]
        assert secret[-8:] not in text


def test_of_too_many_secrets_only_the_type_is_told_and_why():
    many = Secrets(f"secret-{number}" for number in range(MOST + 1))
    shown = many.failure(Failure("ValueError", "no secret-7", "Traceback"))
    assert (shown.type, shown.traceback) == ("ValueError", "")
    assert shown.message.startswith(HIDDEN) and f"more than {MOST}" in shown.message
    assert Secrets(f"secret-{number}" for number in range(MOST)).without("no secret-7") == f"no {HIDDEN}"


async def test_a_result_and_progress_do_not_repeat_what_the_payload_hides():
    app = App("memory://")

    @app.task(name="echo")
    async def echo(password: str) -> dict[str, Any]:
        return {"said": [f"it was {password}"], "n": 1}

    async with opened(app) as web:
        await web.enqueue("echo", id="j", payload={"password": SECRET})
        async with asyncio.timeout(60):
            await app.worker(burst=True).run(handle_signals=False)
        job = await web.get("/api/jobs/j")
        outcome = await web.get("/api/jobs/j/result")
        kept = await app.jobs.get("j")
        assert kept is not None
        under_way = msgspec.structs.replace(kept.record, progress=json.dumps({"at": f"using {SECRET}"}).encode())
        redactor = JobRedactor(under_way, web.server.redaction, app.serdes)
        assert job_view(under_way, 0, QueueSettings(), redactor).progress == {"at": f"using {HIDDEN}"}
    assert job["result"] == outcome["result"] == {"said": [f"it was {HIDDEN}"], "n": 1}


def test_names_are_read_as_words():
    assert words_of("userAPIKey2") == "user api key 2"
    assert words_of("HTTPServer_url") == "http server url"


def test_more_phrases_can_be_added_and_the_usual_left_out():
    assert Redaction(["date of birth"]).hides("dateOfBirth")
    assert not Redaction(["date of birth"], usual=()).hides("password")
    assert not Redaction(usual=()).hides("password")
    with pytest.raises(InvalidInput, match="is not a field to redact"):
        Redaction([""])


def test_everything_inside_a_hidden_field_goes_and_nothing_else():
    plain = {"a": 1, "password": {"old": "x", "new": "y"}, "list": [{"token": "t", "n": None}], "secret": None}
    assert Redaction().plain(plain) == {
        "a": 1,
        "password": HIDDEN,
        "list": [{"token": HIDDEN, "n": None}],
        "secret": None,
    }


@pytest.fixture
def app(url: str) -> App:
    made = App(url)

    @made.task(name="login", max_attempts=1, on_timeout="bury")
    async def login(user: str, password: str) -> None:
        raise ValueError(f"{user} cannot log in with {password}")

    @made.task(name="issue")
    async def issue() -> dict[str, str]:
        return {"token": SECRET, "user": "ada"}

    return made


async def test_no_answer_log_or_stream_shows_what_is_hidden(app: App, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG)
    async with opened(app) as web, Stream(web.served, "/api/events/stream") as stream:
        body = {"task": "login", "id": "j", "payload": {"user": "ada", "password": SECRET}}
        body["headers"] = {"authorization": SECRET, "trace": "abc"}
        await web.post("/api/jobs", body, 201)
        await web.post("/api/jobs", {"task": "issue", "id": "r"}, 201)
        async with asyncio.timeout(60):
            await app.worker(burst=True).run(handle_signals=False)
        streamed = ""
        while '"buried"' not in streamed:
            streamed += str(await stream.message())
        answers = [
            (await web.ask("GET", path, status=200)).text
            for path in (
                "/api/jobs/j",
                "/api/jobs/r",
                "/api/jobs",
                "/api/jobs/j/history",
                "/api/jobs/j/history/diff",
                "/api/jobs/j/result",
                "/api/jobs/r/result",
                "/api/dead",
                "/api/events",
                "/api/audit",
                "/metrics",
            )
        ]
        job = await web.get("/api/jobs/j")

    assert job["payload"] == {"user": "ada", "password": HIDDEN}
    assert job["headers"] == {"authorization": HIDDEN, "trace": "abc"}
    assert job["error"]["message"] == f"ada cannot log in with {HIDDEN}"
    assert job["attempts"] == [] or SECRET not in str(job["attempts"])
    for text in (*answers, streamed):
        assert SECRET not in text
    audit = [record for record in caplog.records if record.name == "millrace.audit"]
    assert audit and not any(SECRET in str(vars(record)) for record in audit)


async def test_an_event_whose_job_is_gone_shows_no_message(app: App):
    async with opened(app) as web:
        await web.enqueue("login", payload={"user": "ada", "password": SECRET}, queue="default")
        async with asyncio.timeout(60):
            await app.worker(burst=True).run(handle_signals=False)
        await web.post("/api/queues/default/obliterate", {"dry_run": False, "confirm": "default"})

        events = (await web.get("/api/events"))["events"]
        [buried] = [event for event in events if event["kind"] == "buried"]
        assert buried["error"]["message"] == HIDDEN and buried["error"]["type"] == "ValueError"
        assert SECRET not in (await web.ask("GET", web.job(buried["job"], "/history"), status=200)).text
        assert SECRET not in (await web.ask("GET", web.job(buried["job"], "/history/diff"), status=200)).text
        assert SECRET not in (await web.ask("GET", web.job(buried["job"], "/result"))).text


async def test_an_earlier_job_of_the_same_id_is_not_given_away_by_the_later_one(app: App):
    async with opened(app) as web:
        await web.enqueue("login", id="again", payload={"user": "ada", "password": SECRET})
        async with asyncio.timeout(60):
            await app.worker(burst=True).run(handle_signals=False)
        await web.enqueue("login", id="again", payload={"user": "ada", "password": "another one"})

        for path in ("/history", "/history/diff"):
            assert SECRET not in (await web.ask("GET", web.job("again", path), status=200)).text
        assert SECRET not in (await web.ask("GET", "/api/events", status=200)).text


class Reversed:
    """A serde of one's own."""

    name = "reversed"

    def encode(self, value: object, /) -> bytes:
        return json.dumps(value).encode()[::-1]

    def decode(self, data: bytes, /) -> object:
        return json.loads(data[::-1])


async def test_a_payload_is_read_once_for_all_errors_and_a_large_one_beside_the_event_loop():
    """Each step of a history tells up to three errors, and each may quote what the payload hides."""
    reading: list[int] = []

    class Watched(Reversed):
        name = "watched"

        def decode(self, data: bytes, /) -> object:
            reading.append(threading.get_ident())
            return super().decode(data)

    app = App("memory://", serde=Watched())

    @app.task(name="login", max_attempts=5, retry=RetryPolicy(initial=0, jitter=0))
    async def login(secret: str, password: str) -> None:
        raise ValueError(f"cannot log in with {password}")

    async with opened(app) as web:
        for job_id, size in (("small", 10), ("large", 100_000)):
            await web.enqueue("login", id=job_id, payload={"password": SECRET, "secret": "x" * size})
        async with asyncio.timeout(60):
            await app.worker(burst=True).run(handle_signals=False)
        for path in ("/api/jobs/{}/history", "/api/jobs/{}/history/diff?from=3&to=5", "/api/events?job={}"):
            for job_id in ("small", "large"):
                reading.clear()
                answer = await web.ask("GET", path.format(job_id), status=200)
                assert SECRET not in answer.text and answer.text.count(HIDDEN) >= 2
                assert len(reading) == 1
                assert (reading[0] == threading.get_ident()) == (job_id == "small")


async def test_what_cannot_be_read_is_not_shown(url: str):
    ours = App(url, serde=Reversed())

    @ours.task(name="login", max_attempts=1)
    async def login(user: str, password: str) -> None:
        raise ValueError(f"{user} cannot log in with {password}")

    async with ours:
        job = await login.enqueue(user="ada", password=SECRET)
        async with asyncio.timeout(60):
            await ours.worker(burst=True).run(handle_signals=False)
    async with opened(ours) as knowing:
        shown = await knowing.get(knowing.job(job.id))
        assert shown["payload"] == {"user": "ada", "password": HIDDEN}
        assert shown["error"]["message"] == f"ada cannot log in with {HIDDEN}"
        if url.startswith("memory"):
            return  # is gone with the app that made it
    async with opened(App(url)) as web:
        shown = await web.get(web.job(job.id))
        assert shown["payload"] == HIDDEN
        assert shown["error"] == {"type": "ValueError", "message": HIDDEN, "traceback": ""}
        dead = await web.get("/api/dead")
        assert dead["causes"][0]["error"] == f"ValueError: {HIDDEN}"


@pytest.mark.parametrize("secret", ["hunter22", "4711-0815-winter"])
async def test_of_a_secret_with_digits_nothing_is_left_in_a_cause_of_death(app: App, secret: str):
    """What varies is taken out of a cause, digits above all: done first, the rest would not be known as a secret."""
    async with opened(app) as web:
        await web.enqueue("login", payload={"user": "ada", "password": secret}, queue="default")
        async with asyncio.timeout(60):
            await app.worker(burst=True).run(handle_signals=False)
        [cause] = (await web.get("/api/dead"))["causes"]

    assert cause["error"] == f"ValueError: ada cannot log in with {HIDDEN}"


def test_without_phrases_nothing_is_hidden():
    rule = Redaction(usual=())
    assert rule.plain({"password": "x"}) == {"password": "x"} and rule.secrets({"password": "long enough"}) == []


async def test_the_workers_log_does_not_repeat_what_is_hidden(app: App, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG)
    async with app:
        await app.tasks["login"].enqueue(user="ada", password=SECRET)
        async with asyncio.timeout(60):
            await app.worker(burst=True).run(handle_signals=False)
    [line] = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert "cannot log in with [redacted]" in line and SECRET not in line
    shown = [logging.Formatter().format(record) for record in caplog.records]
    assert any("Traceback" in text for text in shown)
    assert not any(SECRET in text for text in shown)


async def test_the_rule_is_offered_to_pages(web: Web):
    rule = await web.get("/api/redaction")
    assert rule["shown_as"] == HIDDEN and "api key" in rule["phrases"]
    async with opened(App("memory://"), redact=["date of birth"]) as other:
        assert "date of birth" in (await other.get("/api/redaction"))["phrases"]
        await other.enqueue(id="j", payload={"dateOfBirth": "1815-12-10"})
        assert (await other.get("/api/jobs/j"))["payload"] == {"dateOfBirth": HIDDEN}


async def test_the_lines_of_a_log_hide_what_the_payload_hides():
    app = App("memory://")

    @app.task(keep_log=True)
    async def login(ctx: Context, password: str) -> None:
        ctx.log(f"logging in with {password}", token="t0ken-of-the-session", user="ada")

    async with opened(app) as web:
        job = await login.enqueue(SECRET)
        await app.worker(burst=True).run(handle_signals=False)
        [line] = (await web.get(web.job(job.id)))["log"]
    assert (line["text"], line["fields"]) == (f"logging in with {HIDDEN}", {"token": HIDDEN, "user": "ada"})
    assert [kept.text for kept in await job.log()] == [f"logging in with {SECRET}"]


async def test_a_secret_that_the_cut_of_a_long_line_divides_is_not_shown_in_part():
    app = App("memory://")
    cuts = range(len(CUT_END), len(SECRET) + len(CUT_END), 2)  # a log keeps 64 KiB

    @app.task(keep_log=True)
    async def login(ctx: Context, password: str) -> None:
        for shown in cuts:
            ctx.log("x" * (MOST_TEXT - shown) + password + " and so on")

    async with opened(app) as web:
        job = await login.enqueue(SECRET)
        await app.worker(burst=True).run(handle_signals=False)
        lines = [line["text"] for line in (await web.get(web.job(job.id)))["log"]]
    assert len(lines) == len(cuts)
    for line in lines:
        assert SECRET[:SHORTEST_PART] not in line and line.endswith(CUT_END)
