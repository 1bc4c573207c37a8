"""The middleware around every request. It checks the host, prepares the path, adds security headers, and turns
exceptions into problems.

The security headers forbid browsers to run inline scripts, to load anything from other origins, and to show a page in a
frame.
"""

from __future__ import annotations

from urllib.parse import quote

import msgspec
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from millrace.web.guard import Guard
from millrace.web.operation import ORIGINAL
from millrace.web.problem import as_problem

POLICY = (
    "default-src 'none'; "
    "script-src 'self'; "
    "style-src 'self'; "
    "img-src 'self' data:; "
    "font-src 'self'; "
    "connect-src 'self'; "
    "manifest-src 'self'; "
    "base-uri 'none'; "
    "form-action 'none'; "
    "frame-ancestors 'none'"
)
SECURITY_HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
_ALWAYS = [(name.encode(), value.encode()) for name, value in SECURITY_HEADERS.items()]
_NO_STORE = [(b"cache-control", b"no-store")]


class HttpMiddleware:
    def __init__(self, app: ASGIApp, guard: Guard) -> None:
        self._app = app
        self._guard = guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False

        async def send_with_headers(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                headers = list(message.get("headers", ()))
                cached = any(name == b"cache-control" for name, _ in headers)
                message["headers"] = headers + _ALWAYS + ([] if cached else _NO_STORE)
            elif scope["method"] == "HEAD":
                message["body"] = b""
            await send(message)

        try:
            self._guard.check_host(Headers(scope=scope))
            routed = {**scope, "path": _encoded_path(scope), "root_path": "", ORIGINAL: scope}
            await self._app(routed, receive, send_with_headers)
        except Exception as error:
            if started:
                raise
            await _problem_response(error)(scope, receive, send_with_headers)


def _encoded_path(scope: Scope) -> str:
    """Return the path below the mount point, still percent-encoded. Routes match whole segments, and an id may contain
    "/".
    """
    raw = scope.get("raw_path")
    text = raw.decode("latin-1").partition("?")[0] if raw else quote(scope["path"])
    mounted = len([part for part in scope.get("root_path", "").split("/") if part])
    return "/" + "/".join(text.split("/")[1 + mounted :])


def _problem_response(error: Exception) -> Response:
    problem = as_problem(error)
    return Response(
        msgspec.json.encode(problem.plain()), problem.status, problem.headers, media_type="application/problem+json"
    )
