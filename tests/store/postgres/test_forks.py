"""A process that has the store open and forks, and one whose event loop is over: both go on with connections anew."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from millrace.store.postgres import PostgresStore
from millrace.testing.builders import a_spec
from tests.servers.postgres import url_for


def test_parent_and_child_each_go_on_with_connections_of_their_own(tmp_path: Path) -> None:
    store = PostgresStore(url_for(tmp_path))
    loop = asyncio.new_event_loop()
    loop.run_until_complete(store.connect())
    loop.run_until_complete(store.enqueue([a_spec(id="before")]))
    child = os.fork()
    if child == 0:
        code = 1
        try:
            answers = asyncio.new_event_loop().run_until_complete(store.enqueue([a_spec(id="child")]))
            code = 0 if answers[0].status == "queued" else 2
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    loop.run_until_complete(store.enqueue([a_spec(id="after")]))
    found = loop.run_until_complete(store.get(["before", "child", "after"]))
    loop.run_until_complete(store.close())
    loop.close()

    assert os.waitstatus_to_exitcode(status) == 0
    assert [job.id for job in found if job is not None] == ["before", "child", "after"]
