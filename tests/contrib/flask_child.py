"""A Flask application that is made when its module is imported, so that child processes have it, for the tests."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator

from flask import Flask, current_app, g

from millrace import Depends
from millrace.contrib.flask import Millrace

queue = Millrace(os.environ["SHOP_URL"])
app = Flask("flask_child")
queue.init_app(app)


def name() -> Iterator[str]:
    g.number = 1
    yield current_app.name
    assert g.number == 1


async def name_on_the_loop() -> AsyncIterator[str]:
    yield current_app.name
    assert current_app.name


@queue.task(process=True)
def show(first: str = Depends(name), second: str = Depends(name_on_the_loop)) -> str:
    return f"{first} {g.number} {second}"


if __name__ == "__main__":
    from tests.contrib.flask_child import queue, show

    job = show.sync.enqueue()
    queue.sync.run(queue.worker(burst=True, poll_min=0.01).run(handle_signals=False))
    print(job.result() if job.status().state == "completed" else job.status().error)
