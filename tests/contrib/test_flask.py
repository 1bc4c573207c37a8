"""Flask: handlers run in an app context, requests enqueue, and `flask millrace` is the command line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from asgiref.wsgi import WsgiToAsgi
from flask import Flask, has_app_context
from starlette.applications import Starlette
from starlette.routing import Mount

from millrace import App, InvalidInput
from millrace.contrib import flask as module
from millrace.contrib.flask import Millrace
from millrace.testing import run_sync
from millrace.web import application
from tests.cli.process import eventually
from tests.contrib import flask_shop
from tests.contrib.client import TestClient
from tests.contrib.flask_shop import create_app, fails, greet, greet_all, greet_async, queue

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def shop(tmp_path):
    app = create_app(f"sqlite:///{tmp_path}/jobs.db")
    flask_shop.CLOSED.clear()
    yield app
    queue.sync.close()


def work() -> None:
    queue.sync.run(queue.worker(burst=True, poll_min=0.01).run(handle_signals=False))


def test_a_request_enqueues_and_the_handler_has_an_app_context(shop):
    job_id = shop.test_client().post("/greetings/ada").text
    work()

    assert queue.sync.jobs.result(job_id) == "hello ada"
    assert shop.extensions["millrace"] is queue


def test_an_app_context_ends_in_the_thread_of_its_handler(shop):
    jobs = greet.sync.enqueue_many([{"name": str(number)} for number in range(5)])
    failing = fails.sync.enqueue()
    work()

    assert [job.result() for job in jobs] == [f"hello {number}" for number in range(5)]
    assert failing.status().state == "dead"
    assert len(flask_shop.CLOSED) == 6
    assert "MainThread" not in flask_shop.CLOSED and "millrace-sync" not in flask_shop.CLOSED


def test_coroutines_and_batches_have_an_app_context_too(shop):
    one = greet_async.sync.enqueue("bob")
    many = greet_all.sync.enqueue_many([("a",), ("b",)])
    work()

    assert one.result() == "hello bob (1)"
    assert [job.result() for job in many] == ["hello a", "hello b"]


def test_handlers_that_are_no_functions_have_an_app_context(shop):
    jobs = [task.sync.enqueue("ada") for task in (flask_shop.greet_by_object, flask_shop.greet_by_async_object)]
    method = flask_shop.greet_by_method.sync.enqueue("ada")
    work()

    assert [job.result() for job in jobs] == ["hello ada"] * 2
    assert method.result() == "hello ada (1)"


@pytest.mark.parametrize(
    ("task", "result", "on_loop"),
    [
        (flask_shop.provided, "flask_shop", False),
        (flask_shop.provided_async, "hello flask_shop 1", True),
        (flask_shop.provided_from_the_loop, "hello flask_shop False", False),  # the thread has a context of its own
    ],
    ids=["def", "async def", "both"],
)
def test_providers_and_their_clean_up_share_the_app_context_of_the_handler(shop, task, result, on_loop):
    jobs = task.sync.enqueue_many([{}, {}])
    work()

    assert [job.result() for job in jobs] == [result, result]
    assert [name == "millrace-sync" for name in flask_shop.CLOSED] == [on_loop, on_loop]


def test_a_provider_for_the_worker_has_an_app_context_while_it_makes_its_value(shop):
    jobs = flask_shop.provided_for_the_worker.sync.enqueue_many([{}, {}])
    work()

    assert [job.result() for job in jobs] == ["model of flask_shop for flask_shop"] * 2


def test_a_rehearsal_has_an_app_context(shop):
    assert run_sync(flask_shop.provided) == "flask_shop"
    assert len(flask_shop.CLOSED) == 1


def test_a_child_process_has_an_app_context_if_the_module_of_the_task_makes_the_application(tmp_path):
    url = f"sqlite:///{tmp_path}/jobs.db"
    env = {**os.environ, "SHOP_URL": url, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "tests.contrib.flask_child"],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert done.stdout == "flask_child 1 flask_child\n", done.stderr


def test_a_direct_call_uses_the_context_of_the_request(shop):
    assert shop.test_client().get("/greetings/eve").text == "hello eve"
    assert len(flask_shop.CLOSED) == 1


def test_a_job_has_a_context_of_its_own_where_the_program_has_pushed_one_too(shop):
    with shop.app_context():
        job = greet.sync.enqueue("ada")
        work()
        assert len(flask_shop.CLOSED) == 1
        assert job.result() == "hello ada"


def test_a_task_that_a_handler_calls_directly_shares_its_context(shop):
    both = queue.tasks.get("both") or queue.task(name="both")(call_twice)
    both.sync.enqueue()
    work()

    assert len(flask_shop.CLOSED) == 1


def call_twice() -> list[str]:
    return [greet("ada"), greet("bob")]


def test_without_an_application_a_task_is_a_plain_function():
    plain = Millrace()

    @plain.task
    def double(number: int) -> int:
        return number * 2

    assert double(2) == 4
    assert isinstance(plain, App)
    assert double.spec(2).payload == b'{"number":2}'
    with pytest.raises(Exception, match="int"):
        double.spec("two")  # type: ignore[arg-type]


def test_the_store_of_the_configuration_wins(tmp_path):
    one = Millrace("sqlite:///elsewhere.db")
    flask = Flask("one")
    flask.config["MILLRACE_URL"] = f"sqlite:///{tmp_path}/here.db"

    one.init_app(flask)

    assert one.store.url.endswith("/here.db")


def test_the_command_line_finds_the_app_of_the_application(shop, monkeypatch, capsys):
    job = greet.sync.enqueue("ada")

    result = shop.test_cli_runner().invoke(args=["millrace", "worker", "--burst"])
    assert result.exit_code == 0
    result = shop.test_cli_runner().invoke(args=["millrace", "status", job.id, "--json"])

    assert '"completed"' in result.output
    assert shop.test_cli_runner().invoke(args=["millrace", "status", "unknown"]).exit_code == 1
    assert "worker" in shop.test_cli_runner().invoke(args=["millrace"]).output


def test_an_application_without_the_extension_says_what_to_do(monkeypatch):
    monkeypatch.setattr(module, "_loaded", Flask("bare"))

    with pytest.raises(InvalidInput, match="init_app"):
        _ = module.current
    with pytest.raises(AttributeError):
        _ = module.curent


def test_worker_processes_load_the_application(tmp_path):
    url = f"sqlite:///{tmp_path}/jobs.db"
    create_app(url)
    jobs = greet.sync.enqueue_many([(str(number),) for number in range(20)])
    command = [sys.executable, "-m", "flask", "--app", "tests.contrib.flask_shop", "millrace", "worker", "-p", "2"]
    environ = {**os.environ, "SHOP_URL": url, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, cwd=ROOT, env=environ, start_new_session=True)
    try:
        eventually(lambda: queue.sync.queue("default").counts().completed == len(jobs))
    finally:
        process.terminate()
        code = process.wait(timeout=120)
        queue.sync.close()

    assert code == 0


def test_an_asgi_server_can_serve_the_dashboard_beside_the_application(shop):
    dashboard = application(queue, hosts=["testserver"], tokens={"viewer": "a-token-for-viewers"})
    site = Starlette(routes=[Mount("/queue", dashboard), Mount("/", WsgiToAsgi(shop))])

    with TestClient(site) as client:
        client.post("/greetings/ada")
        answer = client.get("/queue/api/queues", headers={"authorization": "Bearer a-token-for-viewers"})
        assert client.get("/queue/api/queues").status_code == 401
        assert client.portal is not None
        client.portal.call(queue.close)

    assert '"default"' in answer.text


def test_no_context_is_left_behind(shop):
    greet.sync.enqueue("ada")
    work()

    assert not has_app_context()
