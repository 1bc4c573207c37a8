"""A driver that writes nothing: it confirms every write without making it.

With this driver, the ordinary sweep can report what it would repair. So its rules need no second copy.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence

from millrace.store.object.driver import Answer, Blob, Driver, Listing, Read, VersionPage, Want, Write, WriteReply
from millrace.store.object.store import ObjectStore
from millrace.store.sweep_report import SweepShare, Swept

PENDING = b'"pending":{'


class DryDriver:
    """Wraps a connected driver and makes no writes. `pending` lists objects that were read with a pending value."""

    refusal_is_final = True

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self.pending: dict[str, int] = {}  # key -> when it was written
        self.requests: Counter[str] = Counter()

    @property
    def url(self) -> str:
        return self._driver.url

    @property
    def durability(self) -> str:
        return "nothing: read-only"

    @property
    def keeps_versions(self) -> bool:
        return self._driver.keeps_versions

    async def connect(self) -> None: ...

    async def close(self) -> None: ...

    async def read(self, wants: Sequence[Want]) -> Sequence[Read]:
        found = await self._driver.read(wants)
        for blob in found:
            if isinstance(blob, Blob) and PENDING in blob.body:
                self.pending[blob.key] = blob.modified
        return found

    async def write(self, writes: Sequence[Write]) -> Sequence[Answer]:
        return [WriteReply(f"dry-{os.urandom(8).hex()}") for _ in writes]

    async def delete(self, keys: Sequence[str]) -> None: ...

    async def remove(self, key: str, tag: str) -> bool:
        return True

    async def list(self, prefix: str, after: str | None, limit: int) -> Listing:
        return await self._driver.list(prefix, after, limit)

    async def versions(self, key: str, after: str | None, limit: int) -> VersionPage:
        return await self._driver.versions(key, after, limit)

    async def read_version(self, key: str, version: str) -> Blob | None:
        return await self._driver.read_version(key, version)

    async def now(self) -> int:
        return await self._driver.now()

    def mark(self, prefix: str) -> int:
        return 0

    async def wait_for_change(self, prefix: str, timeout: float, since: int | None = None) -> bool:
        return False


class DryLook:
    """A sweep of `store` that only reports, and changes nothing."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._driver = DryDriver(store.blobs.driver)
        place = f"dry {os.urandom(8).hex()}"  # a name that no other process uses
        self._looking = ObjectStore(lambda: self._driver, options=store.options, place=place)

    async def repairs(self, limit: int, *, full: bool) -> tuple[dict[str, int], bool]:
        """Return the number of repairs that the sweep would make, by kind, and whether there is more to check."""
        await self._looking.connect()
        swept = await self._looking.sweep(limit, full=full)
        return swept.repairs, swept.more

    async def sweep_share(self, share: SweepShare) -> Swept:
        await self._looking.connect()
        return await self._looking.sweep_share(share)

    async def sweep_rest(self, began: int) -> Swept:
        await self._looking.connect()
        return await self._looking.sweep_rest(began)

    async def oldest_undecided(self) -> tuple[str, int] | None:
        """Return the oldest object that was read in an undecided transaction: its key, and the time of that write.

        Return None if there is none.
        """
        seen = await self._store.engine.objects.read([*self._driver.pending])
        open_ = [(self._driver.pending[one.key], one.key) for one in seen if one.lock is not None]
        return None if not open_ else (min(open_)[1], min(open_)[0])
