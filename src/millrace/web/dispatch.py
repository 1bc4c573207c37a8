"""The dispatcher: from a request to its route, through the guard, to the handler, and back as an answer or a problem.

Paths are taken apart before they are decoded, because an id may hold a slash. A route is found by its segments, not by
trying patterns one after the other.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Annotated, Any, get_origin
from urllib.parse import parse_qsl, quote, unquote

import msgspec
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, NoMatchFound
from starlette.types import Receive, Scope, Send

from millrace.domain.errors import InvalidInput
from millrace.web.events import Seated
from millrace.web.house import House
from millrace.web.pages import Pages
from millrace.web.problem import Problem, problem_of
from millrace.web.roles import Holder
from millrace.web.route import Answer, Asked, Route
from millrace.web.taken import IN_WORDS

log = logging.getLogger("millrace.web")
LONGEST_QUERY = 16_000
CUT_OFF = 499  # whoever asked went away, so nobody was answered
NOBODY = Holder("open", "nobody")


class Dispatch(BaseRoute):
    """All routes as one, for Starlette."""

    def __init__(self, house: House, routes: Sequence[Route], pages: Pages) -> None:
        self._house = house
        self._pages = pages
        self._tree = _Tree()
        for route in routes:
            self._tree.add(route)

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        return (Match.FULL if scope["type"] == "http" else Match.NONE), {}

    def url_path_for(self, name: str, /, **path_params: Any) -> Any:
        raise NoMatchFound(name, path_params)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        heads = Headers(scope=scope)
        response: Response
        try:
            self._house.guard.check_host(heads)
            segments = _segments(scope)
            found = self._tree.find(segments)
            if found is None:
                response = self._pages.answer(scope, segments)
            else:
                response = await self._answer(scope, receive, heads, *found)
        except Exception as error:
            response = _refused(error)
        if scope["method"] == "HEAD":
            response = _head(response)
        await response(scope, receive, send)

    async def _answer(
        self, scope: Scope, receive: Receive, heads: Headers, methods: dict[str, Route], path: dict[str, str]
    ) -> Response:
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        route = methods.get(method)
        if route is None:
            allowed = ", ".join(sorted({*methods, *(["HEAD"] if "GET" in methods else [])}))
            raise Problem(405, "method", f"only {allowed} can be used here", headers={"allow": allowed})
        if not route.changes:
            asked = await self._asked(route, scope, receive, heads, path, self._admit(route, scope, heads))
            return _response(await route.handler(asked))
        return await self._change(route, scope, receive, heads, path)

    async def _change(
        self, route: Route, scope: Scope, receive: Receive, heads: Headers, path: dict[str, str]
    ) -> Response:
        """A change is noted however it ends."""
        holder, facts, status = NOBODY, dict[str, Any](path), CUT_OFF
        try:
            holder = self._admit(route, scope, heads)
            asked = await self._asked(route, scope, receive, heads, path, holder)
            facts = asked.facts
            response = _response(await route.handler(asked))
            status = response.status_code
            return response
        except Exception as error:
            problem = problem_of(error)
            status = 500 if problem is None else problem.status
            facts = {**facts, "refused": "defect" if problem is None else problem.code}
            raise
        finally:
            client = scope.get("client")
            self._house.audit.note(
                holder.name, "" if client is None else str(client[0]), route.name, scope["path"], status, facts
            )

    def _admit(self, route: Route, scope: Scope, heads: Headers) -> Holder:
        return self._house.guard.admit(scope, heads, route.role)

    async def _asked(
        self, route: Route, scope: Scope, receive: Receive, heads: Headers, path: dict[str, str], holder: Holder
    ) -> Asked:
        query = _query(route, scope["query_string"])
        body = None if route.body is None else await _body(route, receive, heads)
        return Asked(self._house, path, query, body, heads, holder)


class _Tree:
    """Routes by the segments of their paths; a parameter stands for any one segment, a plain word goes first."""

    def __init__(self) -> None:
        self._words: dict[str, _Tree] = {}
        self._parameter: tuple[str, _Tree] | None = None
        self._methods: dict[str, Route] = {}

    def add(self, route: Route) -> None:
        node = self
        for segment in route.path.strip("/").split("/"):
            if segment.startswith("{"):
                if node._parameter is None:
                    node._parameter = (segment.strip("{}"), _Tree())
                node = node._parameter[1]
            else:
                node = node._words.setdefault(segment, _Tree())
        assert route.method not in node._methods, route
        node._methods[route.method] = route

    def find(self, segments: list[str]) -> tuple[dict[str, Route], dict[str, str]] | None:
        node: _Tree = self
        path: dict[str, str] = {}
        for segment in segments:
            below = node._words.get(segment)
            if below is not None:
                node = below
            elif node._parameter is not None and segment:
                name, node = node._parameter
                path[name] = _text(segment)
            else:
                return None
        return (node._methods, path) if node._methods else None


def _segments(scope: Scope) -> list[str]:
    """Of the path below where the server is mounted, still encoded."""
    raw = scope.get("raw_path")
    text = raw.decode("latin-1").partition("?")[0] if raw else quote(scope["path"])
    mounted = len([part for part in scope.get("root_path", "").split("/") if part])
    return text.split("/")[1 + mounted :]


def _text(segment: str) -> str:
    try:
        return unquote(segment, errors="strict")
    except UnicodeDecodeError:
        raise InvalidInput(f"{segment[:100]!r} in the path is not text in UTF-8") from None


def _query(route: Route, text: bytes) -> Any:
    if len(text) > LONGEST_QUERY:
        raise InvalidInput(f"the query has {len(text):,} characters; at most {LONGEST_QUERY:,} are taken")
    kind = route.query
    if kind is None:
        if text:
            raise InvalidInput("this takes no query parameters")
        return None
    if not text:
        return kind()
    values: dict[str, Any] = {}
    lists = {field.encode_name for field in msgspec.structs.fields(kind) if _is_list(field.type)}
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
        raise InvalidInput(_worded(error)) from None
    for field in msgspec.structs.fields(kind):
        if field.encode_name in values and getattr(query, field.name) is None:  # "null", where only some words fit
            raise InvalidInput(f"{field.encode_name}: {values[field.encode_name]!r} is none of its values")
    return query


def _is_list(kind: Any) -> bool:
    while get_origin(kind) is Annotated:
        kind = kind.__origin__
    return get_origin(kind) is list


async def _body(route: Route, receive: Receive, heads: Headers) -> Any:
    data = await _read(receive, heads, route.most)
    assert route.body is not None
    if not data and route.body_optional:
        return route.body()
    content = heads.get("content-type", "").partition(";")[0].strip().lower()
    if content != "application/json":
        raise Problem(415, "content_type", "send a JSON body with Content-Type: application/json")
    try:
        return msgspec.json.decode(data, type=route.body)
    except msgspec.ValidationError as error:
        raise InvalidInput(_worded(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise InvalidInput(f"the body is not JSON that can be read: {str(error) or 'it is nested too deep'}") from None


async def _read(receive: Receive, heads: Headers, most: int) -> bytes:
    too_large = Problem(413, "too_large", f"the body is larger than the {most:,} bytes that are taken here")
    length = heads.get("content-length", "")
    if length.isdigit() and (len(length) > 12 or int(length) > most):
        raise too_large
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Problem(400, "cut_off", "the body was cut off")
        part: bytes = message.get("body", b"")
        size += len(part)
        if size > most:
            raise too_large
        if part:
            parts.append(part)
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)


def _worded(error: Exception) -> str:
    text, _, place = str(error).replace("`", "").partition(" - at $")
    wanted, _, pattern = text.partition(" matching regex ")
    if pattern:  # a pattern says little to a person; the words that go with it say what to send
        words = IN_WORDS.get(pattern.strip("'").replace("\\\\", "\\"))
        text = text if words is None else f"{wanted}, as follows: {words}"
    return f"{place.lstrip('.') or 'the request'}: {text}"


def _response(answer: Answer | Response) -> Response:
    if isinstance(answer, Response):
        return answer
    return Response(
        msgspec.json.encode(answer.value), answer.status, dict(answer.headers), media_type="application/json"
    )


def _head(response: Response) -> Response:
    """The same without its body; a stream's would never end."""
    if isinstance(response, Seated):
        response.seat.close()
    bare = Response(status_code=response.status_code)
    bare.raw_headers = response.raw_headers
    return bare


def _refused(error: Exception) -> Response:
    problem = problem_of(error)
    if problem is None:
        log.error("a request failed for a reason nobody foresaw", exc_info=error)
        problem = Problem(500, "defect", "something went wrong that nobody foresaw; the server's log has more")
    return Response(
        msgspec.json.encode(problem.plain()), problem.status, problem.headers, media_type="application/problem+json"
    )
