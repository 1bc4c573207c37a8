"""NOTIFY as a hint: word of new work and of ends, merged, sent after the commit and not in it.

A NOTIFY inside a transaction makes all commits of the database take turns, so it is sent by itself, at most every few
milliseconds, whatever happened since. Whoever listens wakes as many sleepers as there are jobs. Nothing depends on it:
who sleeps looks for itself from time to time.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from millrace.store.postgres.connections import Connections
from millrace.store.postgres.sql import statements
from millrace.store.postgres.trouble import is_cut
from millrace.store.protocol import Ending

_APART = 0.005  # seconds between two notifications of one process, while there is more to tell than that …
_LEAST = 0.002  # … and else: a request every few milliseconds is not to wait for the one before it
_PROBE_PATIENCE = 2.0
PROBE_EVERY = 60.0  # seconds; a server that fell silent is noticed by its answer to this, which does not come
_COUNT_EVERY = 10.0  # seconds
_SPARE = 4
_MOST_IDS = 60  # in one notification, which may have 8,000 bytes


class Word(msgspec.Struct, omit_defaults=True):
    """What one process tells others: jobs by queue, or ids of jobs that ended, or a probe of its own.

    `complete_plain` writes it too.
    """

    jobs: dict[str, int] = {}
    ended: list[str] = []
    generation: int = 0  # of the one that ended, if it was completed with this result
    result: bytes | None = None
    probe: str = ""
    sender: str = ""
    share: float = 1.0  # of those who hear of jobs, how many are to look: a few for each job, not everybody


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Word).decode


def _setter(lost: asyncio.Event) -> Callable[[object], None]:
    return lambda _connection: lost.set()


class Listener:
    def __init__(self, connections: Connections, schema: str, wanted: bool) -> None:
        self._count_workers = statements(schema)["count_workers"]
        self._workers = 1
        self._counted_until = 0.0
        self._connections = connections
        self._all = f"millrace_{schema}"
        self.mine = f"millrace_{secrets.token_hex(8)}"
        self._wanted = wanted
        self._pending: Counter[str] = Counter()
        self._replies: dict[str, list[str]] = {}
        self._free_at = 0.0  # from then on, what is told is told at once
        self._sending: asyncio.Task[None] | None = None
        self._listening: asyncio.Task[None] | None = None
        self._probed = asyncio.Event()
        self._heard_once = asyncio.Event()
        self.works: bool | None = None  # whether our own probe came back; None: not known yet
        self.on_jobs: Callable[[Mapping[str, int]], object] = lambda jobs: None
        self.on_ended: Callable[[Sequence[str], Ending | None], None] = lambda ids, ending: None
        self.on_gap: Callable[[], None] = lambda: None
        self.asleep: Callable[[], int] = lambda: 1  # how many wait for jobs in this process

    # ── telling ───────────────────────────────────────────────────────────────────────────────

    def tell(self, jobs: Mapping[str, int], replies: Sequence[tuple[str, str]]) -> None:
        if not self._wanted:
            return
        self._pending.update(jobs)
        for channel, job_id in replies:
            if channel != self.mine:
                self._replies.setdefault(channel, []).append(job_id)
        if (self._pending or self._replies) and (self._sending is None or self._sending.done()):
            self._sending = asyncio.ensure_future(self._send())

    def word_of(self, jobs: Mapping[str, int]) -> tuple[str, str] | None:
        """(channel, word) for a call to take along; None when it is to be told afterwards, with others."""
        now = asyncio.get_running_loop().time()
        if not self._wanted or self._pending or now < self._free_at or now > self._counted_until:
            return None
        self._free_at = now + _LEAST
        word = Word(jobs=dict(jobs), sender=self.mine, share=self._share_of(sum(jobs.values())))
        return self._all, _encode(word).decode()

    def words(
        self, jobs: Mapping[str, int], ended: Sequence[str], replies: Sequence[tuple[str, str]]
    ) -> list[tuple[str, str]]:
        """What to notify of in a transaction of somebody else's: this process is to hear it too."""
        if not self._wanted:
            return []
        words = [(self._all, Word(jobs=dict(jobs)))] if jobs else []
        told: dict[str, list[str]] = {self.mine: list(ended)[:_MOST_IDS]} if ended else {}
        for channel, job_id in replies:
            if channel != self.mine:
                told.setdefault(channel, []).append(job_id)
        words += [(channel, Word(ended=ids[:_MOST_IDS])) for channel, ids in told.items()]
        return [(channel, _encode(word).decode()) for channel, word in words]

    async def _send(self) -> None:
        clock = asyncio.get_running_loop().time
        while self._pending or self._replies:
            apart = _LEAST
            if (early := self._free_at - clock()) > 0:
                apart = _APART  # it is one of many
                await asyncio.sleep(early)
            self._free_at = clock() + apart
            words = [(channel, Word(ended=ids[:_MOST_IDS])) for channel, ids in self._replies.items()]
            if self._pending:
                share = await self._share(self._pending.total())
                words.append((self._all, Word(jobs=dict(self._pending), sender=self.mine, share=share)))
            self._replies = {channel: ids[_MOST_IDS:] for channel, ids in self._replies.items() if ids[_MOST_IDS:]}
            self._pending.clear()
            with contextlib.suppress(Exception):  # a hint: whoever sleeps looks for itself
                async with self._connections.one() as connection:
                    await connection.execute(
                        "SELECT pg_notify(channel, word) FROM unnest($1::text[], $2::text[]) AS w (channel, word)",
                        [channel for channel, _ in words],
                        [_encode(word).decode() for _, word in words],
                    )

    async def _share(self, jobs: int) -> float:
        """A few sleepers for each job: most hear of it and sleep on, and a poll makes up for the odd chance."""
        now = asyncio.get_running_loop().time()
        if now > self._counted_until:
            with contextlib.suppress(Exception):
                async with self._connections.one() as connection:
                    self._workers = int(await connection.fetchval(self._count_workers))
                self._counted_until = now + _COUNT_EVERY
        return self._share_of(jobs)

    def _share_of(self, jobs: int) -> float:
        return min(1.0, (_SPARE + jobs * 2) / max(1, self._workers))

    # ── listening ─────────────────────────────────────────────────────────────────────────────

    async def listen(self) -> None:
        """From now on, in the background. Returns once word would be heard, so that a look after it misses nothing."""
        if not self._wanted:
            return
        if self._listening is None:
            self._listening = asyncio.ensure_future(self._keep_listening())
        if not self._heard_once.is_set():
            await asyncio.wait([asyncio.ensure_future(self._heard_once.wait())], timeout=_PROBE_PATIENCE)

    async def _keep_listening(self) -> None:
        pause = 0.1
        while True:
            try:
                connection = await self._connections.open()
                try:
                    lost = asyncio.Event()
                    connection.add_termination_listener(_setter(lost))
                    await connection.add_listener(self._all, self._heard)
                    await connection.add_listener(self.mine, self._heard)
                    if self._heard_once.is_set():
                        self.on_gap()  # what was said meanwhile is lost
                    self._heard_once.set()
                    pause = 0.1
                    while not lost.is_set():
                        await self._probe(connection)
                        with contextlib.suppress(TimeoutError):
                            async with asyncio.timeout(PROBE_EVERY):
                                await lost.wait()
                finally:
                    connection.terminate()
            except Exception as error:
                if not is_cut(error) and not getattr(error, "sqlstate", None):
                    raise
            await asyncio.sleep(pause * (0.5 + random.random()))
            pause = min(5.0, pause * 2)

    async def probed(self) -> bool:
        """Whether word comes through, once that is known."""
        for _ in range(int(_PROBE_PATIENCE / 0.05) + 20):
            if self.works is not None:
                return self.works
            await asyncio.sleep(0.05)
        return False

    async def _probe(self, connection: Any) -> None:
        """Does word come through at all? A pooler may take it and give it to nobody."""
        self._probed.clear()
        await connection.execute("SELECT pg_notify($1, $2)", self.mine, _encode(Word(probe=self.mine)).decode())
        try:
            async with asyncio.timeout(_PROBE_PATIENCE):  # wait_for of Python 3.11 may swallow a cancellation
                await self._probed.wait()
            self.works = True
        except TimeoutError:
            self.works = False

    def _heard(self, _connection: object, _pid: int, _channel: str, text: object) -> None:
        try:
            word = _decode(str(text))
        except msgspec.DecodeError:  # somebody else's channel of the same name
            return
        if word.probe == self.mine:
            self._probed.set()
        if word.jobs and word.sender != self.mine and self._is_meant(word.share):
            self.on_jobs(word.jobs)
        if word.ended:
            self.on_ended(word.ended, Ending(word.generation, word.result) if word.generation else None)

    def _is_meant(self, share: float) -> bool:
        """Workers of one process hear as one: the chance that any of them would look, had each heard by itself."""
        return random.random() >= (1 - share) ** max(1, self.asleep())

    async def close(self) -> None:
        for task in (self._sending, self._listening):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await task
