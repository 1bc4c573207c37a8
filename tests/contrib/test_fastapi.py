"""FastAPI: the lifespan opens and closes the app, the dependency returns it, and the mounted dashboard is guarded."""

from __future__ import annotations

import importlib
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI, Request, WebSocket

from millrace import App, InvalidInput
from millrace.contrib.fastapi import CurrentApp, get_app, lifespan
from millrace.web import application
from tests.contrib.client import TestClient
from tests.project.page import blocks_of

PAGE = Path(__file__).resolve().parents[2] / "docs/howto/fastapi.md"


def make_app(url: str = "memory://") -> App:
    app = App(url)

    @app.task
    async def shout(word: str) -> str:
        return word.upper()

    return app


def make_api(app: App, **options: Any) -> FastAPI:
    api = FastAPI(lifespan=lifespan(app, **options))

    @api.post("/words/{word}")
    async def add(word: str, jobs: CurrentApp) -> str:
        [job] = await jobs.enqueue([jobs.tasks["shout"].spec(word)])
        return job.id

    @api.get("/jobs/{job_id}/result")
    async def result(job_id: str, jobs: CurrentApp) -> Any:
        return await jobs.jobs.result(job_id, wait="30s")

    return api


def test_a_request_enqueues_and_the_embedded_worker_runs(tmp_path):
    app = make_app(f"sqlite:///{tmp_path}/jobs.db")

    with TestClient(make_api(app, worker=app.worker)) as client:
        job_id = client.post("/words/hello").json()
        assert client.get(f"/jobs/{job_id}/result").json() == "HELLO"


def test_without_a_worker_nothing_runs():
    app = make_app()

    with TestClient(make_api(app)) as client:
        job_id = client.post("/words/hello").json()
        assert client.portal is not None
        status = client.portal.call(app.jobs.get, job_id)

    assert status is not None and status.state == "ready"


def test_the_lifespan_can_run_again():
    app = make_app()
    api = make_api(app, worker=lambda: app.worker(slots=2))

    for word in ("one", "two"):
        with TestClient(api) as client:
            job_id = client.post(f"/words/{word}").json()
            assert client.get(f"/jobs/{job_id}/result").json() == word.upper()


def test_the_own_lifespan_begins_after_the_app_and_ends_after_the_worker(tmp_path):
    app = make_app(f"sqlite:///{tmp_path}/jobs.db")
    seen: list[str] = []

    @asynccontextmanager
    async def own(api: FastAPI) -> AsyncIterator[dict[str, str]]:
        seen.append(f"begins with {len([job async for job in app.jobs.find()])} jobs")
        yield {"greeting": "hello"}
        seen.append("ends")

    app.on("worker_started", lambda event: seen.append("worker started"))
    app.on("worker_stopped", lambda event: seen.append("worker stopped"))
    api = make_api(app, worker=app.worker, inner=own)

    @api.get("/greeting")
    async def greeting(request: Request) -> str:
        return str(request.state.greeting)

    with TestClient(api) as client:
        assert client.get("/greeting").json() == "hello"
        job_id = client.post("/words/hello").json()
        assert client.get(f"/jobs/{job_id}/result").json() == "HELLO"

    assert seen == ["begins with 0 jobs", "worker started", "worker stopped", "ends"]


def test_an_error_of_the_own_lifespan_stops_the_start_and_closes_the_app():
    app = make_app()

    @asynccontextmanager
    async def broken(api: FastAPI) -> AsyncIterator[None]:
        if api.title:
            raise RuntimeError("no database")
        yield

    with pytest.raises(RuntimeError, match="no database"), TestClient(make_api(app, worker=app.worker, inner=broken)):
        pass


def test_the_dependency_works_in_web_sockets_and_in_included_and_mounted_apis():
    app = make_app()
    api, inner = FastAPI(lifespan=lifespan(app)), FastAPI()

    @api.websocket("/socket")
    async def socket(socket: WebSocket, jobs: CurrentApp) -> None:
        await socket.accept()
        await socket.send_text(repr(jobs))
        await socket.close()

    @inner.get("/app")
    async def name(jobs: CurrentApp) -> str:
        return repr(jobs)

    api.mount("/inner", inner)
    with TestClient(api) as client:
        with client.websocket_connect("/socket") as opened:
            assert opened.receive_text() == repr(app)
        assert client.get("/inner/app").json() == repr(app)


def test_a_test_can_replace_the_app():
    api, other = make_api(make_app()), make_app()
    api.dependency_overrides[get_app] = lambda: other

    with TestClient(api) as client:
        client.post("/words/hello")
        assert client.portal is not None
        counts = client.portal.call(other.queue("default").counts)

    assert counts.waiting == 1


def test_a_request_without_the_lifespan_says_what_to_do():
    client = TestClient(make_api(make_app()))

    with pytest.raises(InvalidInput, match=r"FastAPI\(lifespan=lifespan\(app\)\)"):
        client.post("/words/hello")


def mounted(**rules: Any) -> TestClient:
    app = make_app()
    api = FastAPI(lifespan=lifespan(app))
    api.mount("/queue", application(app, **rules))
    return TestClient(api, base_url="http://shop.example", client=("192.0.2.7", 50000))


def test_a_mounted_dashboard_refuses_other_machines_unless_it_has_tokens():
    with mounted(hosts=["shop.example"]) as client:
        assert client.get("/queue/api/queues").status_code == 403

    with mounted(hosts=["shop.example"], tokens={"viewer": "a-token-for-viewers"}) as client:
        assert client.get("/queue/api/queues").status_code == 401
        headers = {"authorization": "Bearer a-token-for-viewers"}
        assert client.get("/queue/api/queues", headers=headers).status_code == 200
        assert client.post("/queue/api/queues/default/pause", headers=headers).status_code == 403


def test_a_mounted_dashboard_takes_roles_from_the_login_of_the_api():
    def role_of(scope: Any) -> Any:
        return "operator" if (b"x-user", b"ada") in scope["headers"] else None

    with mounted(role_of=role_of) as client:
        ada = {"x-user": "ada"}
        assert client.get("/queue/api/queues").status_code == 401
        assert client.get("/queue/api/queues", headers=ada).status_code == 200
        assert client.post("/queue/api/queues/default/pause", headers=ada).status_code == 403  # no page of this server
        own = {**ada, "origin": "http://shop.example"}
        assert client.post("/queue/api/queues/default/pause", headers=own).status_code == 200
        assert "Millrace" in client.get("/queue/").text


@pytest.fixture
def documented(tmp_path, monkeypatch):
    """Import the modules of the page docs/howto/fastapi.md, and return them by name."""
    blocks = {block.file: block.text for block in blocks_of(PAGE.read_text("utf-8")) if block.file}
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    names = [str(file).removesuffix(".py") for file in blocks]
    for file, text in blocks.items():
        (tmp_path / str(file)).write_text(text, "utf-8")
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield {name: importlib.import_module(name) for name in names}
    for name in names:
        sys.modules.pop(name, None)


def test_the_programs_of_the_page_work(documented):
    with TestClient(documented["main"].api, client=("127.0.0.1", 50000), base_url="http://localhost") as client:
        job = client.post("/mails", params={"to": "ada@example.com"}).json()
        assert client.get(f"/mails/{job['id']}", params={"wait": 30}).json() == {
            "state": "completed",
            "result": "sent to ada@example.com",
        }
        assert client.get("/mails/unknown").status_code == 404
        assert '"default"' in client.get("/queue/api/queues").text

    with TestClient(documented["orders"].api) as client:
        assert client.post("/orders", params={"product": "tea"}).json() == {"order": 1}
        assert client.post("/orders", params={"product": ""}).status_code == 422
        assert client.get("/receipts", params={"wait": 30}).json() == ["receipt for order 1"]
