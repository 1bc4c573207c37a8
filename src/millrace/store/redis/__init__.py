"""The Redis and Valkey store: every method is a Lua script that the server runs as one atomic step. Start at
`store.py`.
"""

from millrace.store.redis.options import RedisOptions
from millrace.store.redis.store import RedisStore

__all__ = ["RedisOptions", "RedisStore"]
