"""`millrace submit`: O-31, R-03."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from millrace import App
from tests.cli.stage import Stage

SHOP = ("--app", "tests.cli.shop:app")


def test_a_job_is_put_in_without_the_apps_code(cli: Stage):
    job_id = cli("submit", "--type", "send_email", "--input", '{"to": "ada"}').out.strip()

    job = cli("status", job_id, "--json").json
    assert (job["task"], job["queue"], job["state"]) == ("send_email", "default", "ready")
    assert job["payload"] == {"to": "ada"}


def test_with_the_app_the_tasks_own_options_apply(cli: Stage):
    job_id = cli("submit", "send_email", '{"to": "ada", "on": "2026-01-31"}', *SHOP).out.strip()

    job = cli("status", job_id, "--json").json
    assert (job["queue"], job["priority"], job["payload"]["on"]) == ("mail", 3, "2026-01-31")


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        ('{"to": 7}', "parameter 'to'"),
        ('{"too": "ada"}', "no parameter 'too'"),
        ("{}", "needs parameter 'to'"),
        ('{"to": "ada", "on": "soon"}', "on"),
        ('{"to": "ada", "self": 1}', "self"),
        ("{", "not JSON"),
        ("[1]", "JSON object"),
        ("@nowhere.json", "nowhere.json"),
    ],
)
def test_with_the_app_a_payload_that_does_not_fit_is_refused_and_nothing_is_stored(
    cli: Stage, payload: str, words: str
):
    ran = cli.refused("submit", "send_email", payload, *SHOP)

    assert (ran.code, ran.out) == (2, "")
    assert words in ran.err
    assert cli("list", "--json").json["jobs"] == []


def test_a_task_the_app_does_not_know_is_refused_unless_it_is_to_be_unchecked(cli: Stage):
    ran = cli.refused("submit", "send_emial", *SHOP)
    assert ran.code == 2 and "Did you mean 'send_email'?" in ran.err

    assert cli("submit", "send_emial", *SHOP, "--unchecked").out


def test_every_option_of_a_job_arrives(cli: Stage):
    parent = cli("submit", "a").out.strip()
    options = ["--id", "x", "--queue", "mail", "--delay", "90", "--priority", "0", "--group", "g", "--key", "k"]
    more = [
        "--after",
        parent,
        "--max-attempts",
        "2",
        "--timeout",
        "1m",
        "--expires",
        "1h",
        "--header",
        "who=ada",
        "--tag",
        "a",
        "--tag",
        "b",
    ]
    cli("submit", "send_email", '{"to": "ada"}', *SHOP, *options, *more)

    job = cli("status", "x", "--json").json
    assert {name: job[name] for name in ("queue", "priority", "group", "key", "after", "max_attempts", "timeout")} == {
        "queue": "mail",
        "priority": 0,  # the task's own is 3: zero is a value
        "group": "g",
        "key": "k",
        "after": [parent],
        "max_attempts": 2,
        "timeout": 60.0,
    }
    assert job["tags"] == ["a", "b"]
    assert [one["id"] for one in cli("list", "--tag", "b", "--json").json["jobs"]] == ["x"]
    assert cli("list", "--tag", "c", "--json").json["jobs"] == []
    assert "a, b" in cli("status", "x").out
    assert job["state"] == "blocked" and job["headers"] == {"who": "ada"} and job["expires_at"]


def test_a_duplicate_is_an_answer_and_no_error(cli: Stage):
    cli("submit", "a", '{"n": 1}', "--id", "x")

    again = cli("submit", "a", '{"n": 2}', "--id", "x", "--json")

    assert again.json["status"] == "duplicate" and again.json["payload_differs"] is True
    assert "already" in again.err


def test_a_window_holds_a_key_for_its_time_and_can_be_extended(cli: Stage):
    cli("submit", "a", "--key", "k", "--window", "10m", "--id", "x")
    again = cli("submit", "a", "--key", "k", "--window", "1h", "--on-hit", "extend", "--json")
    assert (again.json["status"], again.json["by"], again.json["id"]) == ("duplicate", "key", "x")
    for alone in (["--key", "k", "--on-hit", "extend"], ["--window", "10m"]):
        refused = cli.refused("submit", "a", *alone)
        assert refused.code == 2 and "Use --" in refused.err


def test_a_taken_key_with_on_hit_raise_is_a_no(cli: Stage):
    cli("submit", "a", "--key", "k")
    ran = cli.refused("submit", "a", "--key", "k", "--on-hit", "raise")
    assert ran.code == 1 and "--on-hit keep" in ran.err


def test_a_parent_that_does_not_exist_is_a_no_unless_it_may_come_later(cli: Stage):
    ran = cli.refused("submit", "a", "--after", "later")
    assert ran.code == 1 and "--allow-missing" in ran.err
    cli("submit", "a", "--after", "later", "--allow-missing")


def test_a_full_queue_says_its_numbers(cli: Stage):
    cli("submit", "a")
    cli("queues", "default", "--set", "max_depth=1")

    ran = cli.refused("submit", "a")

    assert ran.code == 1 and "limit is 1" in ran.err


def test_a_payload_comes_from_a_file_or_from_stdin(cli: Stage):
    Path("payload.json").write_text('{"n": 1}')
    cli("submit", "a", "@payload.json", "--id", "file")
    cli("submit", "a", "-", "--id", "stdin", stdin='{"n": 2}')

    assert [job["payload"] for job in cli("status", "file", "stdin", "--json").json] == [{"n": 1}, {"n": 2}]


def test_many_jobs_come_as_lines(cli: Stage):
    lines = "\n".join(json.dumps({"card": n}) for n in range(2_500)) + "\n\n"

    ran = cli("submit", "charge", "-", "--many", "--json", *SHOP, stdin=lines)

    assert ran.json == {"jobs": 2500, "queued": 2500, "duplicate": 0, "completed": 0}
    assert cli("queues", "--json").json[0]["ready"] == 2500


def test_a_bad_line_is_named_and_what_went_in_before_it_is_told(cli: Stage):
    lines = '{"n": 1}\n' * 1_000 + "{\n"

    ran = cli.refused("submit", "a", "-", "--many", stdin=lines)

    assert ran.code == 2
    assert "line 1001" in ran.err and "1,000 jobs" in ran.err


def test_waiting_shows_the_result_when_a_worker_has_done_it(bare: Stage, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MILLRACE_URL", "sqlite:///jobs.db")
    bare("init")
    job = bare("submit", "send_email", '{"to": "ada"}', "--id", "x", *SHOP)
    bare("worker", "--burst", *SHOP)

    done = bare("submit", "send_email", '{"to": "ada"}', "--id", "x", "--wait", *SHOP)

    assert job.out.strip() == "x"
    assert json.loads(done.out) == "sent to ada"
    assert (
        bare("submit", "send_email", '{"to": "ada"}', "--id", "x", "--wait", "--json").json["result"] == "sent to ada"
    )


def test_waiting_in_vain_is_told_apart_from_failing(cli: Stage):
    waiting = cli.refused("submit", "charge", '{"card": 1}', "--id", "x", "--wait-for", "1ms", *SHOP)
    assert waiting.code == 4 and "millrace status x --wait" in waiting.err

    cli("worker", "--burst", *SHOP)
    failed = cli.refused("status", "x", "--wait", "1ms")
    assert failed.code == 1 and "is dead (max_attempts_exceeded)" in failed.err


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("a", "{}", "--task", "a"),
        ("a", "{}", "--payload", "{}"),
        ("no task!",),
        ("a", "--priority", "16"),
        ("a", "--priority", "high"),
        ("a", "--delay", "soon"),
        ("a", "--delay", "-1"),
        ("a", "--queue", "no queue!"),
        ("a", "--id", "x" * 201),
        ("a", "--on-hit", "perhaps", "--key", "k"),
        ("a", "--header", "x"),
        ("a", "--max-attempts", "0"),
        ("a", "-", "--many", "--id", "x"),
        ("a", '{"x": 1e999}'),
        ("a", "{}", "--no-such-option"),
    ],
)
def test_what_can_never_be_right_is_wrong_usage(cli: Stage, arguments: tuple[str, ...]):
    ran = cli.refused("submit", *arguments)

    assert (ran.code, ran.out) == (2, "")
    assert cli("list", "--json").json["jobs"] == []


def test_a_job_submitted_without_the_code_runs_with_it(cli: Stage):
    cli("submit", "send_email", '{"to": "ada"}', "--id", "x", "--queue", "mail")
    cli("worker", "--burst", *SHOP)

    async def result() -> object:
        async with App(cli.url) as app:
            return await app.jobs.result("x")

    assert asyncio.run(result()) == "sent to ada"


def test_the_handler_of_a_pool_is_told_by_the_name_of_its_task(cli: Stage):
    ran = cli.refused("submit", "ship", '{"customer": "ada"}', *SHOP)

    assert ran.code == 2 and "is called 'orders'" in ran.err


def test_waiting_in_vain_says_why_and_what_to_type(cli: Stage):
    ran = cli.refused("submit", "pack", "--id", "a job", "--wait-for", "1ms", *SHOP)

    assert ran.code == 4
    assert "millrace status 'a job' --wait 1m" in ran.err and "no worker is alive" in ran.err
    assert "app.jobs" not in ran.err + cli.refused("status", "a job", "--wait", "1ms").err
