"""The server over a store that may only be read: every page works, and every action is refused."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from millrace import App
from millrace.web.routes import OPERATIONS
from tests.servers.ministack import S3Server, ministack_server, s3_server
from tests.servers.read_only import KINDS, Limited, changed_environment, filled
from tests.web.stage import opened

__all__ = ["ministack_server", "s3_server"]

NAMES = {"/api/pools/{name}": None, "/api/schedules/{name}": None, "/api/queues/{name}": "mail"}
STREAMS = {"/api/events/stream"}


@pytest.fixture(params=KINDS)
def limited(request: pytest.FixtureRequest) -> Iterator[Limited]:
    def server() -> S3Server:
        found: S3Server = request.getfixturevalue("s3_server")
        return found

    with filled(request.param, server) as made, changed_environment(made.environment):
        yield made


def part() -> None: ...


async def test_every_page_works_and_every_action_is_refused(limited: Limited):
    async with App(limited.writer) as app:
        await app.gather([app.task(name="part")(part).spec()]).enqueue(id="a-flow")
    paths = [
        one.path.replace("{id}", "a-flow" if "/flows/" in one.path else "job-0").replace(
            "{name}", NAMES.get(one.path) or ""
        )
        for one in OPERATIONS
        if one.method == "GET" and one.path not in STREAMS and NAMES.get(one.path, "") is not None
    ]
    with limited.unchanged():
        async with opened(App(limited.reader)) as web:
            for path in paths:
                await web.ask("GET", path, status=200)
            assert (await web.get("/api/overview"))["queues"] != []
            refused = await web.post(web.job("job-2", "/cancel"), None, 403)

    assert refused["code"] == "read_only" and "access=read" in refused["detail"]
