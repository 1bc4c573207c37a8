"""The integration with FastAPI: a lifespan that opens the app, and a dependency that returns it.

The dashboard needs no integration: `api.mount("/jobs", millrace.web.application(app, …))`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Annotated, Any

from fastapi import Depends
from fastapi.requests import HTTPConnection

from millrace.app.app import App
from millrace.domain.errors import InvalidInput
from millrace.worker.worker import Worker

Lifespan = Callable[[Any], AbstractAsyncContextManager[Mapping[str, Any]]]
OwnLifespan = Lifespan | Callable[[Any], AbstractAsyncContextManager[None]]


def lifespan(app: App, *, worker: Callable[[], Worker] | None = None, inner: OwnLifespan | None = None) -> Lifespan:
    """Return a lifespan that opens the app at start and closes it at shutdown: `FastAPI(lifespan=lifespan(app))`.

    `worker` makes a worker that runs jobs in the process of the web server: `app.worker`, or a function that returns
    `app.worker(slots=5)`. It stops before the app closes, and waits for running jobs up to its `shutdown_deadline`.
    `inner` is your own lifespan. It begins after the app has opened and before the worker starts, and ends in the
    reverse order, so requests and handlers can use what it opens. What it yields is in `request.state`, as without
    Millrace.
    """

    @asynccontextmanager
    async def run(api: Any) -> AsyncIterator[Mapping[str, Any]]:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(app)
            state = None if inner is None else await stack.enter_async_context(inner(api))
            if worker is not None:
                await stack.enter_async_context(worker())
            yield {**(state or {}), "millrace": app}

    return run


def get_app(connection: HTTPConnection) -> App:
    """Return the app that the lifespan has opened. Use it with `Depends(get_app)`, or by the type `CurrentApp`.

    Raises InvalidInput if the lifespan has not run.
    """
    app = getattr(connection.state, "millrace", None)
    if not isinstance(app, App):
        raise InvalidInput(
            "no Millrace app is open for this request: make the API with FastAPI(lifespan=lifespan(app)), and in tests "
            "use `with TestClient(api) as client:`, which runs the lifespan"
        )
    return app


CurrentApp = Annotated[App, Depends(get_app)]
"""The type of a parameter that receives the open app: `async def list_jobs(app: CurrentApp)`."""
