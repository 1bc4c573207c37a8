"""Describes the operations of the HTTP API as data, and turns a request into a call of a handler.

An `Operation` is one method on one path: its role, the types of its parameters and responses, and the equivalent
command. The decorators of `Routes` create it from a handler. The OpenAPI document is made from the operations. Tests
use them to check every role on every operation, and that every action has a command.

A `Resource` is the Starlette endpoint of one path. It checks the caller's role, parses the request, calls the handler
and writes the audit log. `middleware.py` turns the exceptions of a resource into problems.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_origin, get_type_hints
from urllib.parse import parse_qsl, unquote

import msgspec
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from millrace.domain.errors import InvalidInput
from millrace.domain.rules.check import check_id
from millrace.web.deadline import with_deadline
from millrace.web.guard import Caller, Role
from millrace.web.problem import Problem, problem_of
from millrace.web.requests import IN_WORDS

if TYPE_CHECKING:
    from millrace.web.state import ServerState

MAX_QUERY = 16_000  # characters
MAX_BODY = 64 << 10  # bytes, by default
CLIENT_GONE = 499  # status in the audit log of a change whose client went away before it was answered
DOT_NAMES = {"~.": ".", "~..": ".."}  # queues may have these names, but clients remove such segments from a path
UNKNOWN_CALLER = Caller("open", "nobody")
ORIGINAL = "millrace.original"  # in the scope: the scope as the server gave it, before the path was prepared


@dataclass
class Request:
    """A validated request. Path parameters, query and body have the types that the operation declares."""

    server: ServerState
    path: dict[str, str]
    query: Any
    body: Any
    headers: Mapping[str, str]
    caller: Caller
    root_path: str = ""  # where the server is mounted
    details: dict[str, Any] = field(default_factory=dict[str, Any])  # for the audit log


@dataclass(frozen=True)
class Reply:
    """A response with headers, or with a status other than 200. A handler that needs neither returns the value
    itself.
    """

    value: Any
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


Handler = Callable[[Request], Awaitable[Any]]
H = TypeVar("H", bound=Handler)


@dataclass(frozen=True)
class Link:
    """A link of the OpenAPI document. `operation` is the operation to call next, and `parameters` says which parts of
    the response are its parameters.
    """

    name: str
    operation: str
    parameters: Mapping[str, str]


@dataclass(frozen=True)
class Operation:
    name: str  # operationId
    method: str
    path: str
    role: Role
    summary: str
    handler: Handler
    cli: str | None = None  # the command that does the same
    query: type[Any] | None = None
    body: type[Any] | None = None
    responses: Mapping[int, Any] = field(default_factory=dict[int, Any])  # types by status
    problems: tuple[int, ...] = ()  # statuses, besides those of every operation
    media: str = "application/json"
    max_body: int = MAX_BODY
    links: tuple[Link, ...] = ()
    body_optional: bool = False
    own_deadline: bool = False  # the handler bounds its writes itself

    @property
    def changes(self) -> bool:
        return self.method != "GET"

    @property
    def tag(self) -> str:
        parts = self.path.strip("/").split("/")
        return parts[1] if parts[0] == "api" and len(parts) > 1 else "server"


class Routes(list[Operation]):
    """The operations of one module. The decorator `@routes.get(path, role, summary, …)` on a handler adds an operation.

    `options` are fields of `Operation`. By default, the operation has the handler's name in camel case, and the
    response has the handler's return type.
    """

    def get(self, path: str, role: Role, summary: str, **options: Any) -> Callable[[H], H]:
        return self.add("GET", path, role, summary, **options)

    def post(self, path: str, role: Role, summary: str, **options: Any) -> Callable[[H], H]:
        return self.add("POST", path, role, summary, **options)

    def add(self, method: str, path: str, role: Role, summary: str, **options: Any) -> Callable[[H], H]:
        def decorate(handler: H) -> H:
            first, *words = handler.__name__.split("_")
            options.setdefault("name", first + "".join(map(str.capitalize, words)))
            options.setdefault("responses", {200: get_type_hints(handler)["return"]})
            self.append(Operation(method=method, path=path, role=role, summary=summary, handler=handler, **options))
            return handler

        return decorate


class Resource:
    """The endpoint of one path, with one operation for each method."""

    def __init__(self, server: ServerState, operations: Iterable[Operation]) -> None:
        self._server = server
        self._operations = {operation.method: operation for operation in operations}
        if "GET" in self._operations:
            self._operations["HEAD"] = self._operations["GET"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        operation = self._operations.get(scope["method"])
        if operation is None:
            allowed = ", ".join(sorted(self._operations))
            raise Problem(405, "method", f"only {allowed} can be used here", headers={"allow": allowed})
        path = {name: _decoded(name, segment) for name, segment in scope["path_params"].items()}
        run = self._change if operation.changes else self._read
        response = await run(operation, scope[ORIGINAL], receive, path)
        await response(scope, receive, send)

    async def _read(self, operation: Operation, scope: Scope, receive: Receive, path: dict[str, str]) -> Response:
        headers = Headers(scope=scope)
        caller = self._server.guard.admit(scope, headers, operation.role)
        return _response(await operation.handler(await self._parsed(operation, scope, receive, headers, path, caller)))

    async def _change(self, operation: Operation, scope: Scope, receive: Receive, path: dict[str, str]) -> Response:
        """Run an operation that changes something, and return its response. The audit log records every call, including
        failed ones.
        """
        headers = Headers(scope=scope)
        caller, details, status = UNKNOWN_CALLER, dict[str, Any](path), CLIENT_GONE
        try:
            caller = self._server.guard.admit(scope, headers, operation.role)
            request = await self._parsed(operation, scope, receive, headers, path, caller)
            details = request.details
            handled = operation.handler(request)
            response = _response(await (handled if operation.own_deadline else with_deadline(handled)))
            status = response.status_code
            return response
        except Exception as error:
            problem = problem_of(error)
            status = 500 if problem is None else problem.status
            details = {**details, "refused": "defect" if problem is None else problem.code}
            raise
        finally:
            client = scope.get("client")
            address = "" if client is None else str(client[0])
            self._server.audit.note(caller.name, address, operation.name, scope["path"], status, details)

    async def _parsed(
        self,
        operation: Operation,
        scope: Scope,
        receive: Receive,
        headers: Headers,
        path: dict[str, str],
        caller: Caller,
    ) -> Request:
        if "id" in path:
            check_id("id", path["id"])
        query = _query(operation, scope["query_string"])
        body = None if operation.body is None else await _body(operation, receive, headers)
        return Request(self._server, path, query, body, headers, caller, scope.get("root_path", ""))


def _decoded(name: str, segment: str) -> str:
    if name == "name" and segment in DOT_NAMES:
        return DOT_NAMES[segment]
    try:
        return unquote(segment, errors="strict")
    except UnicodeDecodeError:
        raise InvalidInput(f"{segment[:100]!r} in the path is not text in UTF-8") from None


def _query(operation: Operation, text: bytes) -> Any:
    if len(text) > MAX_QUERY:
        raise InvalidInput(f"the query has {len(text):,} characters; at most {MAX_QUERY:,} are taken")
    kind = operation.query
    if kind is None:
        if text:
            raise InvalidInput("this takes no query parameters")
        return None
    if not text:
        return kind()
    values: dict[str, Any] = {}
    lists = {one.encode_name for one in msgspec.structs.fields(kind) if _is_list(one.type)}
    try:
        pairs = parse_qsl(text.decode("latin-1"), keep_blank_values=True, errors="strict")
    except (UnicodeDecodeError, ValueError):
        raise InvalidInput("the query is not text in UTF-8") from None
    for name, value in pairs:
        if name in lists:
            values.setdefault(name, []).append(value)
        elif name in values:
            raise InvalidInput(f"{name[:100]!r} was given twice")
        else:
            values[name] = value
    try:
        query = msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidInput(_explained(error)) from None
    for one in msgspec.structs.fields(kind):
        if one.encode_name in values and getattr(query, one.name) is None:  # the text "null" was decoded as None
            raise InvalidInput(f"{one.encode_name}: {values[one.encode_name]!r} is none of its values")
    return query


def _is_list(kind: Any) -> bool:
    while get_origin(kind) is Annotated:
        kind = kind.__origin__
    return get_origin(kind) is list


async def _body(operation: Operation, receive: Receive, headers: Headers) -> Any:
    data = await _body_bytes(receive, headers, operation.max_body)
    assert operation.body is not None
    if not data and operation.body_optional:
        return operation.body()
    content = headers.get("content-type", "").partition(";")[0].strip().lower()
    if content != "application/json":
        raise Problem(415, "content_type", "send a JSON body with Content-Type: application/json")
    try:
        return msgspec.json.decode(data, type=operation.body)
    except msgspec.ValidationError as error:
        raise InvalidInput(_explained(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise InvalidInput(f"the body is not JSON that can be read: {str(error) or 'it is nested too deep'}") from None


async def _body_bytes(receive: Receive, headers: Headers, most: int) -> bytes:
    length = headers.get("content-length", "")
    if length.isdigit() and (len(length) > 12 or int(length) > most):
        raise _too_large(most)
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Problem(400, "cut_off", "the body was cut off")
        part: bytes = message.get("body", b"")
        size += len(part)
        if size > most:
            raise _too_large(most)
        if part:
            parts.append(part)
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)


def _too_large(most: int) -> Problem:
    return Problem(413, "too_large", f"the body is larger than the {most:,} bytes that are taken here")


def _explained(error: Exception) -> str:
    """Return msgspec's message in a readable form. The field comes first, and a regular expression is replaced by its
    description.
    """
    text, _, place = str(error).replace("`", "").partition(" - at $")
    wanted, _, pattern = text.partition(" matching regex ")
    if pattern:
        description = IN_WORDS.get(pattern.strip("'").replace("\\\\", "\\"))
        text = text if description is None else f"{wanted}, as follows: {description}"
    return f"{place.lstrip('.') or 'the request'}: {text}"


def _response(answer: Any) -> Response:
    if isinstance(answer, Response):
        return answer
    reply = answer if isinstance(answer, Reply) else Reply(answer)
    return Response(msgspec.json.encode(reply.value), reply.status, dict(reply.headers), media_type="application/json")
