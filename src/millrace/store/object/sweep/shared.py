"""Checks objects that several jobs share: groups, lanes, unique keys, schedules, settings and commit records.

A commit record is an object whose only purpose is to be the primary of a large transaction.
"""

from __future__ import annotations

from collections.abc import Sequence

from millrace.store.object.driver import Listed
from millrace.store.object.engine.objects import SeenObject, Swap, opened, value_bytes
from millrace.store.object.engine.values import JobValue, KeyValue, value_of
from millrace.store.object.sweep.round import Round

FAMILIES = ("lines/", "keys/")  # families with up to one object per job
SETTINGS = ("schedules/", "control/")
# An empty object may be what makes the commit of a suspended process fail. So it stays for longer than a process can
# pause between two requests and still continue.
STUB_AGE = 24 * 60 * 60 * 1000
STUB_SIZE = 64
LONGEST_STUB = 400


class SharedSweep:
    def __init__(self, round_: Round) -> None:
        self._round = round_

    async def check(self, keys: Sequence[str]) -> None:
        found = await self._round.read(keys)
        await self._free_keys([seen for seen in found if seen.key.startswith("keys/")])

    async def _free_keys(self, found: Sequence[SeenObject]) -> None:
        """Free unique keys whose window is over, or whose owner's record is gone.

        If the owner has ended but its record exists, the key is kept, because a replay of the owner does not write it
        again.
        """
        holds = [(seen, value) for seen in found if (value := value_of(seen, KeyValue)) is not None]
        owners = [*dict.fromkeys(value.owner for _, value in holds if value.hold.scope != "window")]
        records = {seen.key: seen for seen in await self._round.objects.read(owners)}
        over: list[Swap] = []
        for seen, value in holds:
            if value.hold.scope == "window":
                is_over = value.hold.until is not None and value.hold.until <= self._round.now - self._round.young
            else:
                is_over = _is_gone(records[value.owner], value.hold.seq)
            if is_over:
                over.append(Swap(seen, None))
        self._round.done["keys_freed"] += sum(await self._round.rewrite(over))

    async def check_stubs(self, entries: Sequence[Listed]) -> int:
        """Delete objects that have no value and whose transactions are complete. Return the number of objects read.

        This needs a driver that can delete by tag.
        """
        old = [entry.key for entry in entries if self._is_past(entry) and self._may_be_stub(entry)]
        for blob in await self._round.blobs.get_many(old):
            if blob is None:
                continue
            envelope = opened(blob.body)
            if value_bytes(envelope.value) is not None or envelope.pending is not None:
                continue
            if all([await self._is_through(tx, keys) for tx, keys in (envelope.commits or {}).items()]):
                self._round.done["stubs_removed"] += await self._round.blobs.remove(blob.key, blob.tag)
        return len(old)

    def _may_be_stub(self, entry: Listed) -> bool:
        """Return whether the object may have no value, judging by its size.

        An object without a value that still names a transaction is longer. Objects of that size are checked only in
        some rounds.
        """
        return entry.size <= STUB_SIZE or (entry.size <= LONGEST_STUB and self._round.is_next(entry.key))

    def _is_past(self, entry: Listed) -> bool:
        return entry.modified <= self._round.now - STUB_AGE

    async def check_manifest(self, entry: Listed) -> int:
        """Delete a commit record once its transaction is complete. Return the number of objects read."""
        blob = await self._round.blobs.get(entry.key) if self._round.is_old(entry) else None
        if blob is None:
            return 0
        commits = opened(blob.body).commits or {}
        looked = 1 + sum(map(len, commits.values()))
        self._round.done["looked_at"] += looked
        if not commits and not self._is_past(entry):
            return looked
        if all([await self._is_through(tx, keys) for tx, keys in commits.items()]):
            await self._round.blobs.delete([entry.key])
            self._round.done["manifests_removed"] += 1
        return looked

    async def _is_through(self, tx: str, keys: Sequence[str]) -> bool:
        """Complete the transaction. Return whether none of its objects is pending any more.

        If objects were pending, all objects are read again to be sure.
        """
        carried = await self._round.objects.carry_through(tx, keys)
        self._round.done["carried_through"] += carried
        return carried == 0 or await self._round.objects.carry_through(tx, keys) == 0


def _is_gone(owner: SeenObject, seq: int) -> bool:
    if owner.lock is not None:
        return False
    job = (value_of(owner, JobValue) or JobValue()).job
    return job is None or job.seq != seq
