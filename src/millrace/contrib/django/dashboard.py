"""The dashboard behind Django's login, in the ASGI application of a site."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from importlib import import_module
from typing import Any

from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.conf import settings
from django.contrib.auth import get_user
from django.db import connections
from django.http import HttpRequest, parse_cookie

from millrace.contrib.django.app import get_worker_app
from millrace.web import application

Scope = MutableMapping[str, Any]
ASGI = Callable[[Scope, Any, Any], Awaitable[None]]
_ROLE = "millrace.role"


def with_dashboard(site: ASGI, path: str, alias: str = "default") -> ASGI:
    """Return an ASGI application with the dashboard below `path`, and with `site` everywhere else.

    application = with_dashboard(get_asgi_application(), "/jobs")

    The dashboard uses the login of the site: superusers are admins; the permissions `millrace.change_dashboard` and
    `millrace.view_dashboard` make operators and viewers of other users. All others have to log in first.
    """
    path = "/" + path.strip("/")
    served = application(get_worker_app(alias), role_of=lambda scope: scope[_ROLE])

    async def run(scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await served(scope, receive, send)  # Django has no lifespan of its own
        elif scope["type"] == "http" and (mounted := _mounted(scope, path)) is not None:
            async with ThreadSensitiveContext():
                role = await sync_to_async(_role)(scope["headers"])
            await served({**scope, "root_path": mounted, _ROLE: role}, receive, send)
        else:
            await site(scope, receive, send)

    return run


def _mounted(scope: Scope, path: str) -> str | None:
    """Return the part of the request's path up to and including `path`, or None if the request is for another page.

    As in Django, the path may begin with the `root_path` of the server, or not.
    """
    whole: str = scope["path"]
    below = whole.removeprefix(scope.get("root_path", "").rstrip("/"))
    return whole.removesuffix(below) + path if f"{below}/".startswith(f"{path}/") else None


def _role(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """Return the role of the user whose session the cookie names."""
    try:
        user = get_user(_request(headers))
        if not user.is_active:
            return None
        if user.is_superuser:
            return "admin"
        if user.has_perm("millrace.change_dashboard"):
            return "operator"
        return "viewer" if user.has_perm("millrace.view_dashboard") else None
    finally:
        connections.close_all()


def _request(headers: Iterable[tuple[bytes, bytes]]) -> HttpRequest:
    """Return a request with the session of the cookie, which is what Django needs to find the user."""
    request = HttpRequest()
    cookies = b"; ".join(value for name, value in headers if name == b"cookie")
    key = parse_cookie(cookies.decode("latin-1")).get(settings.SESSION_COOKIE_NAME)
    session = import_module(settings.SESSION_ENGINE).SessionStore(key)
    # With SECRET_KEY_FALLBACKS, `get_user` replaces the session. The browser would not get the new key here, so that is
    # left to the next page of the site.
    session.cycle_key = lambda: None
    request.session = session
    return request
