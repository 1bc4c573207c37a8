"""Schemathesis against the document: what fits it and what does not, and chains of calls along its links.

No answer may be a 5xx, have a status or a shape that the document does not tell of, or take what it refuses. A
value may fit its schema and still be wrong (a date in February, a cursor of another store), so a 400 for those is fine.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import schemathesis
from hypothesis import HealthCheck, assume, given, settings
from schemathesis.checks import CHECKS, load_all_checks

from millrace import App, Spec
from millrace.web import application
from millrace.web.routes import OPERATIONS
from tests.servers import redis_server
from tests.web.stage import TOKENS

AS_ADMIN = {"Authorization": f"Bearer {TOKENS['admin']}"}
NAMES = [f"{route.method} {route.path}" for route in OPERATIONS]


def bounded(examples: int, **more: Any) -> settings:
    return settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=examples < 100,
        suppress_health_check=list(HealthCheck),
        **more,
    )


@pytest.fixture(scope="module")
def schema(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    yield from documented(f"sqlite:///{tmp_path_factory.mktemp('fuzz')}/jobs.db")


@pytest.fixture(scope="module", params=["sqlite", "redis"])
def stored_schema(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("fuzz")
    yield from documented(redis_server.url_for(folder) if request.param == "redis" else f"sqlite:///{folder}/jobs.db")


def documented(url: str) -> Iterator[Any]:
    logging.getLogger("millrace").setLevel(logging.CRITICAL)
    load_all_checks()
    served = application(url, tokens=TOKENS, hosts=["testserver"])
    served.state.server.shutdown.set()  # streams end at once
    yield schemathesis.openapi.from_asgi("/openapi.json", served)
    logging.getLogger("millrace").setLevel(logging.NOTSET)


def impatient(case: Any) -> None:
    """Nobody works here, so no wait would be worth it; one that is too long must stay so, and be refused."""
    wait = (case.query or {}).get("wait")
    if isinstance(wait, int | float) and 0.01 < wait <= 60:
        case.query["wait"] = 0.01


def all_is_sent(case: Any) -> bool:
    """A parameter without a value is left out on the way, and what was to be wrong with it, too. And one value is as
    good as a list of it: `id=true` names a job."""
    query = case.query or {}
    lost = any(value is None or value in ([], {}, ()) for value in query.values())
    return not lost and isinstance(query.get("id", []), list)


def plain(case: Any) -> None:
    """A job that can be put in, and a list that finds some: chains begin there. Strange ones are tried one by one."""
    if case.operation.label == "GET /api/jobs":
        case.query = {name: value for name, value in (case.query or {}).items() if name in ("limit", "oldest", "all")}
    if case.operation.label == "POST /api/jobs" and isinstance(case.body, dict):
        for name in set(case.body) - {"task", "payload", "id", "queue", "priority", "group"}:
            del case.body[name]


def all_but_acceptance() -> list[Any]:
    left_out = {"positive_data_acceptance", "ensure_resource_availability", "max_response_time"}
    return [check for check in CHECKS.get_all() if getattr(check, "__name__", str(check)) not in left_out]


def try_operation(schema: Any, name: str, examples: int) -> int:
    method, path = name.split()
    operation = schema[path][method]
    tried = 0
    for mode in (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE):
        if mode is schemathesis.GenerationMode.NEGATIVE and not (
            operation.body or operation.path_parameters or operation.query
        ):
            continue

        @given(case=operation.as_strategy(generation_mode=mode))
        @bounded(examples)
        def attempt(case: Any) -> None:
            nonlocal tried
            tried += 1
            impatient(case)
            assume(all_is_sent(case))
            case.call_and_validate(headers=AS_ADMIN, checks=all_but_acceptance())

        attempt()
    return tried


@pytest.mark.parametrize("name", NAMES)
def test_every_operation_keeps_to_the_document(schema: Any, name: str):
    assert try_operation(schema, name, 6) >= 1


@pytest.mark.nightly
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("name", NAMES)
def test_every_operation_keeps_to_the_document_at_length(stored_schema: Any, name: str):
    assert try_operation(stored_schema, name, 400) >= 1


def walk(
    schema: Any, examples: int, steps: int, fresh: Callable[[], str] = lambda: f"memory://{uuid4().hex}"
) -> list[str]:
    calls: list[str] = []

    server = schema.app.state.server
    schema = schema.include(tag=["jobs", "queues"])
    schema.config.generation.update(modes=[schemathesis.GenerationMode.POSITIVE])

    class Walk(schema.as_state_machine()):  # type: ignore[misc]
        def setup(self) -> None:
            """Each chain begins in the same store: what is drawn must not depend on the chains before."""
            server.app = App(fresh())
            server.app.sync.enqueue([Spec(f"job-{number}", "pack", f"queue-{number % 3}") for number in range(9)])

        def get_call_kwargs(self, case: Any) -> dict[str, Any]:
            impatient(case)
            plain(case)
            return {"headers": AS_ADMIN}

        def validate_response(self, response: Any, case: Any, *_: Any, **__: Any) -> None:
            calls.append(f"{case.operation.label} {response.status_code}")
            case.validate_response(response, headers=AS_ADMIN, checks=all_but_acceptance())

    Walk.run(settings=bounded(examples, stateful_step_count=steps))
    return calls


def test_chains_along_the_links_keep_to_the_document(schema: Any):
    calls = walk(schema, 20, 8)

    assert len(calls) > 40
    assert [call for call in calls if "/api/jobs/{id}" in call and call.endswith("200")], calls
    assert not [call for call in calls if " 5" in call[-4:]]


@pytest.mark.nightly
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("store", ["memory", "sqlite", "redis"])
def test_long_chains_along_the_links_keep_to_the_document(schema: Any, store: str, tmp_path: Path):
    fresh = {
        "memory": lambda: f"memory://{uuid4().hex}",
        "sqlite": lambda: f"sqlite:///{tmp_path}/{uuid4().hex}.db",
        "redis": lambda: redis_server.url_for(tmp_path / uuid4().hex),
    }
    calls = walk(schema, 500, 25, fresh[store])
    assert len(calls) > 1_000
    assert not [call for call in calls if " 5" in call[-4:]]
