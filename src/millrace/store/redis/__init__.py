"""The Redis and Valkey store."""

from millrace.store.redis.store import RedisStore

__all__ = ["RedisStore"]
