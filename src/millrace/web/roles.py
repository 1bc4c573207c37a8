"""Who may do what: three roles, each with all that the one before it may do.

viewer looks, operator acts on jobs and pauses queues, admin changes settings and removes for good. `open` is for what
anybody may see who can reach the server: whether it is well, and how its API is used.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Mapping
from typing import Literal, get_args

from millrace.domain.errors import InvalidInput

Role = Literal["open", "viewer", "operator", "admin"]
ROLES: tuple[Role, ...] = get_args(Role)
SHORTEST_TOKEN = 16


def may(role: Role, needed: Role) -> bool:
    return ROLES.index(role) >= ROLES.index(needed)


class Holder:
    """Somebody who showed a token: the role it gives, and a name for the audit log that does not give it away."""

    __slots__ = ("name", "role")

    def __init__(self, role: Role, name: str) -> None:
        self.role: Role = role
        self.name = name


class Tokens:
    """Kept as digests, and all of them compared each time, so that time tells nothing."""

    def __init__(self, tokens: Mapping[str, str | Iterable[str]]) -> None:
        self._known: list[tuple[bytes, Holder]] = []
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
            raise InvalidInput(f"the {role} token holds a space, which no request could carry")
        digest = hashlib.sha256(token.encode()).digest()
        if any(known == digest for known, _ in self._known):
            raise InvalidInput(f"the {role} token is another role's too; give each role its own")
        self._known.append((digest, Holder(role, f"{role}:{digest.hex()[:8]}")))

    def __bool__(self) -> bool:
        return bool(self._known)

    def holder(self, token: str) -> Holder | None:
        digest = hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
        found: Holder | None = None
        for known, holder in self._known:
            if hmac.compare_digest(known, digest):
                found = holder
        return found
