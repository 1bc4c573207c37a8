"""A share of a round: what one of several sweepers looks at, so that they need not wait for each other.

A job, its index keys and its data are one sweeper's, so that it need not read again what it has just read. Where keys
do not lie by shard, each sweeper lists them all and passes over those of others: a listing of a thousand keys costs
less than reading their jobs twice.
"""

from __future__ import annotations

from zlib import crc32

from millrace.store.object.keys import Layout
from millrace.store.swept import SweepShare

_BY_SHARD = ("tasks/", "ready/", "leases/", "data/")
_OF_JOBS = ("held/", "done/", "gone/", "deps/")


class Part:
    """Without a share: everything."""

    def __init__(self, layout: Layout, share: SweepShare | None = None) -> None:
        self._layout = layout
        self._share = share

    def prefixes(self, family: str) -> list[str]:
        if self._share is None or family not in _BY_SHARD:
            return [family]
        return [f"{family}{shard}/" for shard in self._share.shards]

    def holds(self, key: str) -> bool:
        share = self._share
        if share is None or key.startswith(_BY_SHARD):
            return True
        if key.startswith(_OF_JOBS):
            name = name_in_key(key)
            return name is not None and self._layout.shard_of(name) in share.shards
        return crc32(key.encode()) % share.of == share.number


def name_in_key(key: str) -> str | None:
    """The name of the job that an index key is about; of a dependency, who is waited for."""
    if key.startswith("deps/"):
        return key.split("/")[1]
    if key.startswith("gone/"):
        return key.rsplit(".", 1)[1]
    entry = Layout.parse(key)
    return None if entry is None else entry.name


def shares(layout: Layout, n: int) -> list[SweepShare]:
    """At most `n` of them, which together are everything that can be shared out."""
    size = -(-len(layout.shards) // max(1, n))
    parts = [layout.shards[start : start + size] for start in range(0, len(layout.shards), size)]
    return [SweepShare(shards, number, len(parts)) for number, shards in enumerate(parts)]
