"""The object store with read access: no probe, no layout object, no writer number, no repair."""

from __future__ import annotations

from millrace.domain.errors import StoreNotFound
from millrace.store.object.engine.values import LayoutValue, value_of
from millrace.store.object.keys import LAYOUT
from millrace.store.object.store import ObjectStore, check_shard_digits
from millrace.store.read_access import ReadAccess


class ReadOnlyObjectStore(ReadAccess, ObjectStore):
    async def connect(self) -> None:
        await self.blobs.connect_for_reading()
        try:
            [seen] = await self.engine.objects.read([LAYOUT])
            made = value_of(seen, LayoutValue)
            if made is None:
                raise StoreNotFound(
                    f"{self.blobs.url} is not a store of Millrace. Check the URL; access=read creates none."
                )
            check_shard_digits(self.blobs.url, made, self.options.shard_digits)
        except BaseException:
            await self.blobs.close()
            raise

    async def close(self) -> None:
        await self.engine.ready.close()
        await self.blobs.close()
