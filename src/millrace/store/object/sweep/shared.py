"""What jobs share: lines, unique keys, schedules, settings; and the manifests of large batches."""

from __future__ import annotations

from collections.abc import Sequence

from millrace.store.object.driver import Entry
from millrace.store.object.envelope import opened, plain
from millrace.store.object.objects import Change, Seen
from millrace.store.object.sweep.round import Round
from millrace.store.object.values import JobValue, KeyValue, decode

FAMILIES = ("lines/", "keys/")  # as many as there are jobs, or nearly
SETTINGS = ("schedules/", "control/")
# A stub may be what makes somebody's commit fail who has been asleep since: it stays for longer than anybody sleeps
# between two requests, and gets up to go on with the second.
STUB_AGE = 24 * 60 * 60 * 1000
STUB_SIZE = 64
LONGEST_STUB = 400


class SharedSweep:
    def __init__(self, round_: Round) -> None:
        self._round = round_

    async def look(self, keys: Sequence[str]) -> None:
        found = await self._round.read(keys)
        await self._free_keys([seen for seen in found if seen.key.startswith("keys/") and seen.value is not None])

    async def _free_keys(self, found: Sequence[Seen]) -> None:
        """A key whose window is over, or whose owner's record is gone, holds nothing.

        That of an owner who has only ended stays: the owner may be brought back, which does not write the key anew.
        """
        holds = [(seen, decode(seen.value or b"", KeyValue)) for seen in found]
        owners = [*dict.fromkeys(value.owner for _, value in holds if value.hold.scope != "window")]
        records = {seen.key: seen for seen in await self._round.objects.read(owners)}
        over: list[Change] = []
        for seen, value in holds:
            if value.hold.scope == "window":
                is_over = value.hold.until is not None and value.hold.until <= self._round.now - self._round.young
            else:
                is_over = _is_gone(records[value.owner], value.hold.seq)
            if is_over:
                over.append(Change(seen, None))
        self._round.done["keys_freed"] += sum(await self._round.rewrite(over))

    async def look_at_stubs(self, entries: Sequence[Entry]) -> int:
        """Objects without a value, whose transactions are through, are removed where that can be done exactly."""
        old = [entry.key for entry in entries if self._is_past(entry) and self._may_be_stub(entry)]
        for blob in await self._round.blobs.get_many(old):
            if blob is None:
                continue
            envelope = opened(blob.body)
            if plain(envelope.value) is not None or envelope.pending is not None:
                continue
            if all([await self._is_through(tx, keys) for tx, keys in (envelope.commits or {}).items()]):
                self._round.done["stubs_removed"] += await self._round.blobs.remove(blob.key, blob.tag)
        return len(old)

    def _may_be_stub(self, entry: Entry) -> bool:
        """By its size. One that still names a transaction is as long as many that are no stub, and waits its turn."""
        return entry.size <= STUB_SIZE or (entry.size <= LONGEST_STUB and self._round.is_next(entry.key))

    def _is_past(self, entry: Entry) -> bool:
        return entry.modified <= self._round.now - STUB_AGE

    async def look_at_manifest(self, entry: Entry) -> int:
        """A manifest may go once nobody has to ask it any more."""
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
        """Carried through, and seen to be: what was still pending is read again."""
        carried = await self._round.objects.carry_through(tx, keys)
        self._round.done["carried_through"] += carried
        return carried == 0 or await self._round.objects.carry_through(tx, keys) == 0


def _is_gone(owner: Seen, seq: int) -> bool:
    if owner.lock is not None:
        return False
    job = None if owner.value is None else decode(owner.value, JobValue).job
    return job is None or job.seq != seq
