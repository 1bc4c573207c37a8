"""The Redis store with read access: it calls only scripts that read, and registers nothing on the server.

A script runs with the permissions of its user. So the server refuses every write of a user who may only read, in Redis
6.2 and later. The script commands with the suffix `_RO` are not needed for this; Redis has them since 7.0.
"""

from __future__ import annotations

from millrace.store.read_access import ReadAccess
from millrace.store.redis.store import RedisStore


class ReadOnlyRedisStore(ReadAccess, RedisStore):
    async def connect(self) -> None:
        """Check that this user may read the store. How the server keeps jobs safe is checked by those who write."""
        await self._wire.command("HGET", f"{self._wire.prefix}store", "seq")
        if self.options.durability != "relaxed":
            await self.examine()  # decides how a page of events is confirmed
