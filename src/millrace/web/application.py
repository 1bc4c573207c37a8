"""The ASGI application: the HTTP API, live events, metrics and the dashboard for one store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import Route

from millrace.app.app import App
from millrace.app.telemetry.redaction import Redaction
from millrace.domain.errors import InvalidInput
from millrace.store.protocol import Store
from millrace.web.audit import Audit
from millrace.web.exporter import Exporter
from millrace.web.guard import ROLES, Guard, Role, RoleOf, Tokens
from millrace.web.middleware import HttpMiddleware
from millrace.web.operation import Operation, Resource
from millrace.web.pages import Pages
from millrace.web.routes import OPERATIONS
from millrace.web.state import ServerState


def application(
    app: App | Store | str,
    *,
    tokens: Mapping[str, str | Iterable[str]] | None = None,
    hosts: Iterable[str] = (),
    local: Role = "admin",
    role_of: RoleOf | None = None,
    redact: Redaction | Iterable[str] = (),
    audit: Path | str | None = None,
) -> Starlette:
    """Return an ASGI application for one store.

    Run it with any ASGI server, or mount it in another app: `Mount("/jobs", millrace.web.application(app))`. If `app`
    is an App with tasks, the payloads of new jobs are validated against these tasks. If it is a store or a URL,
    payloads are stored without validation.

    `tokens` maps a role to its bearer token, or to several: {"viewer": …, "operator": …, "admin": …}. Without tokens,
    only requests from this machine are accepted, with the role `local`. `hosts` lists the host names of the server.
    localhost and IP addresses are always accepted (without tokens, only loopback addresses). `role_of` is for an
    application that is mounted behind a login: it takes the ASGI scope of a request and returns the role of the
    logged-in user, or None. With `role_of`, requests from pages of other origins are refused.

    Fields whose names contain certain phrases are hidden. `redact` is a list of phrases to add to the default ones, or
    a `Redaction` that replaces them. `audit` is a file to which the audit log is appended; the logger `millrace.audit`
    receives the same entries.

    Raises InvalidInput for invalid arguments, and for `tokens` together with `role_of`.
    """
    if local not in ROLES[1:]:
        raise InvalidInput(f"local is a role: viewer, operator or admin; not {local!r}")
    made = app if isinstance(app, App) else App(app)
    rule = redact if isinstance(redact, Redaction) else Redaction(redact)
    if role_of is not None and tokens:
        raise InvalidInput("give tokens or role_of, not both: a request is let in by one of them")
    hosts = tuple(hosts)
    if "*" in hosts and not tokens and role_of is None:
        raise InvalidInput('hosts=["*"] would let any page point a name of its own here. Name them, or set tokens')
    guard = Guard(Tokens(tokens or {}), hosts or ("*",) if role_of is not None else hosts, local, role_of)
    server = ServerState(made, guard, Audit(audit), rule, Exporter(made))

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with made:
            yield
            server.shutdown.set()

    served = Starlette(routes=_routes(server), middleware=[Middleware(HttpMiddleware, guard=guard)], lifespan=lifespan)
    served.state.server = server
    return served


def _routes(server: ServerState) -> list[Route]:
    """Return one route for each path of the API, and a last route that serves the files of the dashboard under all
    other paths.
    """
    by_path: dict[str, list[Operation]] = {}
    for operation in OPERATIONS:
        by_path.setdefault(operation.path, []).append(operation)
    routes = [Route(path, Resource(server, operations)) for path, operations in by_path.items()]
    return [*routes, Route("/{file:path}", Pages())]
