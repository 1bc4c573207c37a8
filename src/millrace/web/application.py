"""The web application: the HTTP API, live events, metrics and the dashboard over one store, for any ASGI server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from starlette.applications import Starlette
from starlette.middleware import Middleware

from millrace.domain.errors import InvalidInput
from millrace.runtime.app import App
from millrace.runtime.redaction import Redaction
from millrace.store.protocol import Store
from millrace.web.audit import Audit
from millrace.web.dispatch import Dispatch
from millrace.web.exporter import Exporter
from millrace.web.guard import Guard, RoleOf
from millrace.web.headers import SafeHeaders
from millrace.web.house import House
from millrace.web.pages import Pages
from millrace.web.roles import ROLES, Role, Tokens
from millrace.web.table import ROUTES


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
    """An ASGI application: run it, or mount it in yours: `Mount("/jobs", millrace.web.application(app))`.

    With an app of yours, payloads are checked against its tasks; with a store or its URL, they are stored as they are.

    `tokens` are the bearer tokens of each role: {"viewer": …, "operator": …, "admin": …}, one or several. Without any,
    only this machine is served, in the role `local`. `hosts` are the names that the server is reached by, besides
    addresses and localhost. Mounted behind a login of your own, `role_of` takes the ASGI scope of a request and answers
    the role of whoever is logged in, or None; changes then must come from pages of the same origin.

    `redact` adds phrases to those by which fields are hidden, or is a rule of your own. `audit` names a file for the
    log of changes; the logger `millrace.audit` has it too.
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
    house = House(made, guard, Audit(audit), rule, Exporter(made))

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with made:
            yield
            house.closing.set()

    dispatch = Dispatch(house, ROUTES, Pages())
    served = Starlette(routes=[dispatch], middleware=[Middleware(SafeHeaders)], lifespan=lifespan)
    served.state.house = house
    return served
