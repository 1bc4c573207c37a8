"""The guard: whose request this is, and whether it may pass.

Without tokens only this machine is served, and only under names that mean this machine, so that a page elsewhere cannot
reach it by a name of its own that it points here (DNS rebinding). What changes something must come with a token, or
from a page of this very server: browsers say so in Sec-Fetch-Site and Origin, which no page can forge.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from urllib.parse import urlsplit

from starlette.types import Scope

from millrace.domain.errors import InvalidInput
from millrace.web.problem import Problem
from millrace.web.roles import ROLES, Holder, Role, Tokens, may

SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
FORWARDED = frozenset(  # what proxies add; one that adds nothing cannot be told from this machine
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
Heads = Mapping[str, str]
RoleOf = Callable[[Scope], Role | None]


class Guard:
    """`hosts` are further names that this server is reached by; "*" takes any. `local` is the role of this machine's
    users where no token is set. `role_of` asks the app around this one instead, which knows who is logged in."""

    def __init__(
        self, tokens: Tokens, hosts: Iterable[str] = (), local: Role = "admin", role_of: RoleOf | None = None
    ) -> None:
        self._role_of = role_of
        self._tokens = tokens
        self._hosts = frozenset(_host_name(host) for host in hosts)
        self._local = Holder(local, "local")

    def admit(self, scope: Scope, heads: Heads, needed: Role) -> Holder:
        """Whoever asks; or the Problem to answer with."""
        if needed == "open":
            return Holder("open", "anybody")
        if self._role_of is not None:
            self._refuse_other_sites(scope, heads)
            holder = self._by_app(self._role_of, scope)
        elif not self._tokens:
            self._refuse_elsewhere(scope, heads)
            self._refuse_other_sites(scope, heads)
            holder = self._local
        else:
            holder = self._by_token(heads)
        if not may(holder.role, needed):
            raise Problem(403, "role", f"this needs the role {needed}, and the token is one of {holder.role}")
        return holder

    def check_host(self, heads: Heads) -> None:
        if "*" in self._hosts:
            return
        host = _bare(heads.get("host", ""))
        if host in self._hosts or host == "localhost":
            return
        address = _address(host)
        if address is not None and (self._tokens or address.is_loopback):
            return  # a name can be pointed here by its owner; an address cannot
        raise Problem(
            421,
            "host",
            f"this server does not answer to the name {host[:200]!r}. If it is yours, say so: --allow-host NAME, or "
            "hosts=[…] in millrace.web.application(…)",
        )

    def _by_app(self, role_of: RoleOf, scope: Scope) -> Holder:
        role = role_of(scope)
        if role is None:
            raise Problem(401, "login", "log in first")
        if role not in ROLES[1:]:
            raise ValueError(f"role_of answers viewer, operator, admin or None, not {role!r}")
        return Holder(role, f"{role}:app")

    def _by_token(self, heads: Heads) -> Holder:
        kind, _, token = heads.get("authorization", "").partition(" ")
        holder = self._tokens.holder(token.strip()) if kind.lower() == "bearer" else None
        if holder is None:
            raise Problem(
                401,
                "token",
                "this needs a token: send it as Authorization: Bearer TOKEN",
                headers={"www-authenticate": 'Bearer realm="millrace"'},
            )
        return holder

    def _refuse_elsewhere(self, scope: Scope, heads: Heads) -> None:
        client = scope.get("client")
        address = None if client is None else _address(str(client[0]))
        passed_on = any(name in FORWARDED or name.startswith(FORWARDED_LIKE) for name in heads)
        if address is None or not address.is_loopback or passed_on:
            raise Problem(
                403,
                "not_local",
                "no token is set, so only this machine is served, and not through a proxy. Set one: "
                "MILLRACE_ADMIN_TOKEN, or tokens={…} in millrace.web.application(…)",
            )

    def _refuse_other_sites(self, scope: Scope, heads: Heads) -> None:
        site, origin = heads.get("sec-fetch-site"), heads.get("origin")
        ours = origin is not None and _place(origin) == heads.get("host", "").lower()
        if scope["method"] in SAFE:
            allowed = site in (None, "same-origin", "none") and (origin is None or ours)
        else:
            allowed = (site == "same-origin" and (origin is None or ours)) or (site is None and ours)
        if not allowed:
            raise Problem(
                403,
                "cross_site",
                "without a token, requests must come from a page of this server. From a program, use a token, or "
                f"send the header Origin: http://{heads.get('host', '')[:200]}",
            )


def is_loopback(host: str) -> bool:
    """Is this a name or address under which only this machine is reached?"""
    address = _address(_bare(host))
    return host == "localhost" if address is None else address.is_loopback


def _bare(host: str) -> str:
    """A Host header without its port; nothing, where it is none."""
    host = host.strip().lower()
    if host.startswith("["):
        address, closed, rest = host.partition("]")
        return address + closed if closed and _PORT.fullmatch(rest) else ""
    if host.count(":") != 1:
        return host
    name, _, port = host.partition(":")
    return name if _PORT.fullmatch(f":{port}") else ""


@lru_cache(maxsize=1_024)  # each request comes by here, and most come from the same places
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
