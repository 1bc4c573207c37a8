"""One route: where it is, who may use it, what it takes and answers, and which command does the same.

The table of routes is data. The dispatcher, the OpenAPI document, the test of every role on every route and the test
that every action has a command are all made from it, so none of them can know of a route that the others do not.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from millrace.web.roles import Holder, Role

if TYPE_CHECKING:
    from millrace.web.house import House

SMALL = 64 << 10  # bytes of a body, unless the route says otherwise


@dataclass
class Asked:
    """A request, admitted and read: path parameters, query and body are as the route declares them."""

    house: House
    path: dict[str, str]
    query: Any
    body: Any
    heads: Mapping[str, str]
    holder: Holder
    root: str = ""  # where the server is mounted
    facts: dict[str, Any] = field(default_factory=dict[str, Any])  # for the audit log


@dataclass(frozen=True)
class Answer:
    value: Any
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


Handler = Callable[[Asked], Awaitable[Answer | Response]]


@dataclass(frozen=True)
class Link:
    """What an answer leads to: an operation, and where in the answer its parameter stands."""

    name: str
    operation: str
    parameters: Mapping[str, str]


@dataclass(frozen=True)
class Route:
    name: str  # operationId
    method: str
    path: str
    role: Role
    summary: str
    handler: Handler
    cli: str | None = None  # the command that does the same
    query: type[Any] | None = None
    body: type[Any] | None = None
    answers: Mapping[int, Any] = field(default_factory=dict[int, Any])  # types by status
    refusals: tuple[int, ...] = ()  # besides those that any route may give
    media: str = "application/json"
    most: int = SMALL
    links: tuple[Link, ...] = ()
    body_optional: bool = False
    long: bool = False  # a change that may take its time: it bounds its own writes

    @property
    def changes(self) -> bool:
        return self.method not in ("GET", "HEAD")

    @property
    def tag(self) -> str:
        parts = self.path.strip("/").split("/")
        return parts[1] if parts[0] == "api" and len(parts) > 1 else "server"
