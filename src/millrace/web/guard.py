"""Access control: determines the role of a request and refuses requests that are not allowed.

There are three roles, and each includes the rights of the one before: a viewer reads, an operator acts on jobs and
pauses queues, an admin changes settings and deletes permanently. Operations with the role `open` (health, API
description) need no role.

If no tokens are configured, only requests from this machine are accepted, and only under the name localhost, a loopback
address or a configured host name. This prevents DNS rebinding, in which a web page reaches the server through a domain
that resolves to this machine. Without a token, a request that changes something must also come from a page of this
server. This is checked by the headers Sec-Fetch-Site and Origin, which web pages cannot set.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Literal, get_args
from urllib.parse import urlsplit

from starlette.types import Scope

from millrace.domain.errors import InvalidInput
from millrace.web.problem import Problem

Role = Literal["open", "viewer", "operator", "admin"]
ROLES: tuple[Role, ...] = get_args(Role)
SHORTEST_TOKEN = 16
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
FORWARDED = frozenset(  # headers of proxies; a proxy that adds none of them looks like a local client
    {
        "client-ip",
        "fastly-client-ip",
        "forwarded",
        "true-client-ip",
        "via",
        "x-client-ip",
        "x-cluster-client-ip",
        "x-envoy-external-address",
        "x-original-forwarded-for",
        "x-original-host",
        "x-real-ip",
    }
)
FORWARDED_LIKE = ("x-forwarded-", "cf-")
_PORT = re.compile(r"(:[0-9]*)?")
RequestHeaders = Mapping[str, str]
RoleOf = Callable[[Scope], Role | None]


def may(role: Role, needed: Role) -> bool:
    return ROLES.index(role) >= ROLES.index(needed)


class Caller:
    """The sender of a request: the role, and a name for the audit log that does not reveal the token."""

    __slots__ = ("name", "role")

    def __init__(self, role: Role, name: str) -> None:
        self.role: Role = role
        self.name = name


class Tokens:
    """The accepted tokens and their roles. Only digests are stored. A token is compared with all of them, so that the
    response time reveals nothing about the tokens.
    """

    def __init__(self, tokens: Mapping[str, str | Iterable[str]]) -> None:
        self._known: list[tuple[bytes, Caller]] = []
        for role in tokens:
            if role not in ROLES[1:]:
                raise InvalidInput(f"there is no role {role!r}; known are: {', '.join(ROLES[1:])}")
        for role in ROLES[1:]:
            given = tokens.get(role, ())
            for token in (given,) if isinstance(given, str) else given:
                self._add(role, token)

    def _add(self, role: Role, token: object) -> None:
        if not isinstance(token, str) or len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable():
            raise InvalidInput(
                f"the {role} token must be at least {SHORTEST_TOKEN} printable ASCII characters. "
                "Make one: python -c 'import secrets; print(secrets.token_urlsafe(32))'"
            )
        if " " in token:
            raise InvalidInput(f"the {role} token contains a space, which a request header cannot carry")
        digest = hashlib.sha256(token.encode()).digest()
        if any(known == digest for known, _ in self._known):
            raise InvalidInput(f"the {role} token is another role's too; give each role its own")
        self._known.append((digest, Caller(role, f"{role}:{digest.hex()[:8]}")))

    def __bool__(self) -> bool:
        return bool(self._known)

    def caller(self, token: str) -> Caller | None:
        digest = hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
        found: Caller | None = None
        for known, caller in self._known:
            if hmac.compare_digest(known, digest):
                found = caller
        return found


class Guard:
    """Decides which requests are accepted, and with which role.

    `hosts` lists additional host names of this server; "*" accepts any name. `local` is the role of requests from this
    machine if no tokens are configured. If `role_of` is set, tokens are not used. It is called with the ASGI scope of
    each request, and returns the role of the logged-in user, or None.
    """

    def __init__(
        self, tokens: Tokens, hosts: Iterable[str] = (), local: Role = "admin", role_of: RoleOf | None = None
    ) -> None:
        self._role_of = role_of
        self._tokens = tokens
        self._hosts = frozenset(_host_name(host) for host in hosts)
        self._local = Caller(local, "local")

    def admit(self, scope: Scope, headers: RequestHeaders, needed: Role) -> Caller:
        """Return the caller of a request. Raises Problem if the caller is unknown or lacks the role `needed`."""
        if needed == "open":
            return Caller("open", "anybody")
        if self._role_of is not None:
            self._refuse_other_sites(scope, headers)
            caller = self._by_app(self._role_of, scope)
        elif not self._tokens:
            self._refuse_elsewhere(scope, headers)
            self._refuse_other_sites(scope, headers)
            caller = self._local
        else:
            caller = self._by_token(headers)
        if not may(caller.role, needed):
            raise Problem(403, "role", f"this needs the role {needed}, but the caller has the role {caller.role}")
        return caller

    def check_host(self, headers: RequestHeaders) -> None:
        if "*" in self._hosts:
            return
        host = _bare(headers.get("host", ""))
        if host in self._hosts or host == "localhost":
            return
        address = _address(host)
        if address is not None and (self._tokens or address.is_loopback):
            return  # a domain can be made to resolve to this machine; an IP address cannot
        raise Problem(
            421,
            "host",
            f"this server does not answer to the name {host[:200]!r}. If it is yours, say so: --allow-host NAME, or "
            "hosts=[…] in millrace.web.application(…)",
        )

    def _by_app(self, role_of: RoleOf, scope: Scope) -> Caller:
        role = role_of(scope)
        if role is None:
            raise Problem(401, "login", "log in first")
        if role not in ROLES[1:]:
            raise ValueError(f"role_of answers viewer, operator, admin or None, not {role!r}")
        return Caller(role, f"{role}:app")

    def _by_token(self, headers: RequestHeaders) -> Caller:
        kind, _, token = headers.get("authorization", "").partition(" ")
        caller = self._tokens.caller(token.strip()) if kind.lower() == "bearer" else None
        if caller is None:
            raise Problem(
                401,
                "token",
                "this needs a token: send it as Authorization: Bearer TOKEN",
                headers={"www-authenticate": 'Bearer realm="millrace"'},
            )
        return caller

    def _refuse_elsewhere(self, scope: Scope, headers: RequestHeaders) -> None:
        client = scope.get("client")
        address = None if client is None else _address(str(client[0]))
        passed_on = any(name in FORWARDED or name.startswith(FORWARDED_LIKE) for name in headers)
        if address is None or not address.is_loopback or passed_on:
            raise Problem(
                403,
                "not_local",
                "no token is set, so only this machine is served, and not through a proxy. Set one: "
                "MILLRACE_ADMIN_TOKEN, or tokens={…} in millrace.web.application(…)",
            )

    def _refuse_other_sites(self, scope: Scope, headers: RequestHeaders) -> None:
        site, origin = headers.get("sec-fetch-site"), headers.get("origin")
        ours = origin is not None and _place(origin) == headers.get("host", "").lower()
        if scope["method"] in SAFE:
            allowed = site in (None, "same-origin", "none") and (origin is None or ours)
        else:
            allowed = (site == "same-origin" and (origin is None or ours)) or (site is None and ours)
        if not allowed:
            own = f"the header Origin: http://{headers.get('host', '')[:200]}"
            if self._role_of is not None:  # tokens are not used
                text = f"requests must come from a page of this server. From a program, send {own}"
            else:
                text = (
                    "without a token, requests must come from a page of this server. From a program, use a token, or "
                    f"send {own}"
                )
            raise Problem(403, "cross_site", text)


def is_loopback(host: str) -> bool:
    """Return whether this host name or address always refers to this machine."""
    address = _address(_bare(host))
    return host == "localhost" if address is None else address.is_loopback


def _bare(host: str) -> str:
    """Return the host in a Host header, in lower case and without the port. Return an empty string if the header is
    malformed.
    """
    host = host.strip().lower()
    if host.startswith("["):
        address, closed, rest = host.partition("]")
        return address + closed if closed and _PORT.fullmatch(rest) else ""
    if host.count(":") != 1:
        return host
    name, _, port = host.partition(":")
    return name if _PORT.fullmatch(f":{port}") else ""


@lru_cache(maxsize=1_024)  # every request calls this, and most come from the same addresses
def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None


def _place(origin: str) -> str | None:
    try:
        parts = urlsplit(origin)
    except ValueError:
        return None
    return parts.netloc.lower() if parts.scheme in ("http", "https") else None


def _host_name(host: object) -> str:
    if not isinstance(host, str) or not host or any(sign in host for sign in "/ @?#"):
        raise InvalidInput(f"{host!r} is not the name of a host; give e.g. jobs.example.com")
    name = host if host == "*" else _bare(host)
    if not name:
        raise InvalidInput(f"{host!r} is not the name of a host; give e.g. jobs.example.com")
    return name
