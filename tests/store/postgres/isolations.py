"""Databases whose transactions are REPEATABLE READ or SERIALIZABLE unless a transaction says otherwise."""

from __future__ import annotations

import atexit
import os
import secrets
from functools import cache
from urllib.parse import urlsplit, urlunsplit

from tests.servers.postgres import Schemas, shared_url

LEVELS = ("repeatable read", "serializable")


@cache
def schemas_under(level: str) -> Schemas:
    """Of a database in the server that all tests of this process share."""
    shared = Schemas(shared_url())
    name = f"t{os.getpid()}_{secrets.token_hex(3)}"
    shared.run(f"CREATE DATABASE {name}")
    shared.run(f"ALTER DATABASE {name} SET default_transaction_isolation = '{level}'")
    owner = os.getpid()
    atexit.register(
        lambda: shared.run(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)") if os.getpid() == owner else None
    )
    return Schemas(urlunsplit(urlsplit(shared_url())._replace(path=f"/{name}")))
