"""Wake-ups through NOTIFY: notifications of claimable and ended jobs are merged, and sent after the commit.

A NOTIFY inside a transaction serializes all commits of the database. So notifications are sent separately, at most
every few milliseconds, for everything that has happened since the last one. A process that receives a notification
wakes as many sleepers (idle workers that wait for jobs) as there are jobs. Notifications are only hints: sleepers also
poll.
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

from millrace.domain.tables import Place
from millrace.store.postgres.connections import Connections
from millrace.store.postgres.errors import is_cut
from millrace.store.postgres.hints import Hint, HintHandler
from millrace.store.postgres.sql import statements
from millrace.store.protocol import Ending
from millrace.store.waiters import Sleepers

_APART = 0.005  # seconds between two notifications of one process under load …
_LEAST = 0.002  # … and otherwise: with a request every few milliseconds, none waits for the one before it
_PROBE_PATIENCE = 2.0
PROBE_EVERY = 60.0  # seconds; a server that went silent is detected by the missing reply
_COUNT_EVERY = 10.0  # seconds
_MOST_IDS = 60  # in one notification, which may have 8,000 bytes …
_MOST_HINTS = 8  # … each of these with two names


class Notification(msgspec.Struct, omit_defaults=True):
    """The payload of a NOTIFY: claimable jobs, jobs that a process takes, ids of ended jobs, or a probe.

    The SQL function `complete_plain` creates such payloads too.
    """

    jobs: list[Hint] = []
    taken: list[Hint] = []
    ended: list[str] = []
    generation: int = 0  # of the ended job, if it was completed with this result
    result: bytes | None = None
    probe: str = ""
    sender: str = ""


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Notification).decode


def _in_batches(hints: list[Hint]) -> list[list[Hint]]:
    return [hints[start : start + _MOST_HINTS] for start in range(0, len(hints), _MOST_HINTS)]


def _setter(lost: asyncio.Event) -> Callable[[object], None]:
    return lambda _connection: lost.set()


class Listener:
    """Sends and receives the notifications of one process.

    If `wanted` is False, notifications are not used. `given` returns the time of a test clock, or None. `on_ended` is
    called when jobs have ended, and `on_gap` when notifications may have been missed.
    """

    def __init__(
        self,
        connections: Connections,
        schema: str,
        wanted: bool,
        given: Callable[[], int | None],
        sleepers: Sleepers,
        on_ended: Callable[[Sequence[str], Ending | None], None],
        on_gap: Callable[[], None],
    ) -> None:
        self._count_workers = statements(schema)["count_workers"]
        self._given = given
        self._live: dict[str | None, int] = {}  # workers by queue, and all of them under None
        self._counted_until = 0.0
        self._hint_handler = HintHandler(sleepers.wake, sleepers.can_use, self._announce_taken)
        self._connections = connections
        self._all = f"millrace_{schema}"
        self.mine = f"millrace_{secrets.token_hex(8)}"
        self._wanted = wanted
        self._pending: Counter[Place] = Counter()
        self._taken: Counter[Place] = Counter()
        self._replies: dict[str, list[str]] = {}
        self._free_at = 0.0  # from then on, a notification is sent immediately
        self._sending: asyncio.Task[None] | None = None
        self._listening: asyncio.Task[None] | None = None
        self._probed = asyncio.Event()
        self._subscribed = asyncio.Event()
        self.works: bool | None = None  # whether the probe arrived; None: not known yet
        self.on_ended = on_ended
        self.on_gap = on_gap

    # ── sending ───────────────────────────────────────────────────────────────────────────────

    def notify(self, jobs: Mapping[Place, int], replies: Sequence[tuple[str, str]]) -> None:
        if not self._wanted:
            return
        self._pending.update(jobs)
        for channel, job_id in replies:
            if channel != self.mine:
                self._replies.setdefault(channel, []).append(job_id)
        self._send_soon()

    def _announce_taken(self, place: Place, jobs: int) -> None:
        self._taken[place] += jobs
        self._send_soon()

    def _send_soon(self) -> None:
        if self._has_pending() and (self._sending is None or self._sending.done()):
            self._sending = asyncio.ensure_future(self._send())

    def _has_pending(self) -> bool:
        return bool(self._pending or self._replies or self._taken)

    def notification_for(self, jobs: Mapping[Place, int]) -> tuple[str, str] | None:
        """Return the channel and the payload to send together with a call.

        Return None if the notification must be merged with others and sent afterwards, or if notifications are not
        used.
        """
        now = asyncio.get_running_loop().time()
        if not self._wanted or self._pending or now < self._free_at or now > self._counted_until:
            return None
        if len(jobs) > _MOST_HINTS:
            return None
        self._free_at = now + _LEAST
        return self._all, _encode(Notification(jobs=self._hints(jobs), sender=self.mine)).decode()

    def notifications(
        self, jobs: Mapping[Place, int], ended: Sequence[str], replies: Sequence[tuple[str, str]]
    ) -> list[tuple[str, str]]:
        """Return the (channel, payload) pairs to send in a transaction of the caller. They also reach this process."""
        if not self._wanted:
            return []
        notifications = [(self._all, Notification(jobs=hints)) for hints in _in_batches(self._hints(jobs))]
        ended_by_channel: dict[str, list[str]] = {self.mine: list(ended)[:_MOST_IDS]} if ended else {}
        for channel, job_id in replies:
            if channel != self.mine:
                ended_by_channel.setdefault(channel, []).append(job_id)
        notifications += [(channel, Notification(ended=ids[:_MOST_IDS])) for channel, ids in ended_by_channel.items()]
        return [(channel, _encode(notification).decode()) for channel, notification in notifications]

    async def _send(self) -> None:
        clock = asyncio.get_running_loop().time
        while self._has_pending():
            apart = _LEAST
            if (early := self._free_at - clock()) > 0:
                apart = _APART  # there are many notifications
                await asyncio.sleep(early)
            self._free_at = clock() + apart
            if self._pending:
                await self._count()  # before anything is taken: more may arrive meanwhile
            notifications = [(channel, Notification(ended=ids[:_MOST_IDS])) for channel, ids in self._replies.items()]
            for hints in _in_batches(self._hints(self._pending)):
                notifications.append((self._all, Notification(jobs=hints, sender=self.mine)))
            for hints in _in_batches([Hint(*place, jobs) for place, jobs in self._taken.items()]):
                notifications.append((self._all, Notification(taken=hints, sender=self.mine)))
            self._replies = {channel: ids[_MOST_IDS:] for channel, ids in self._replies.items() if ids[_MOST_IDS:]}
            self._pending.clear()
            self._taken.clear()
            with contextlib.suppress(Exception):  # only a hint: sleepers also poll
                async with self._connections.one() as connection:
                    await connection.execute(
                        "SELECT pg_notify(channel, word) FROM unnest($1::text[], $2::text[]) AS w (channel, word)",
                        [channel for channel, _ in notifications],
                        [_encode(notification).decode() for _, notification in notifications],
                    )

    async def _count(self) -> None:
        """Count the live workers of each queue, unless they were counted a few seconds ago.

        A hint contains this number. All these workers may receive the hint, but only a few of them should query the
        server.
        """
        now = asyncio.get_running_loop().time()
        if now > self._counted_until:
            with contextlib.suppress(Exception):
                async with self._connections.one() as connection:
                    self._live = dict(map(tuple, await connection.fetch(self._count_workers, self._given())))
                self._counted_until = now + _COUNT_EVERY

    def _hints(self, jobs: Mapping[Place, int]) -> list[Hint]:
        return [Hint(*place, count, self._live.get(place[0], 0)) for place, count in jobs.items()]

    # ── listening ─────────────────────────────────────────────────────────────────────────────

    async def listen(self) -> None:
        """Start to listen in the background. Wait until the subscription is active, but at most 2 seconds.

        A query after that misses no job, because this process is notified of later changes.
        """
        if not self._wanted:
            return
        if self._listening is None:
            self._listening = asyncio.ensure_future(self._keep_listening())
        if not self._subscribed.is_set():
            await asyncio.wait([asyncio.ensure_future(self._subscribed.wait())], timeout=_PROBE_PATIENCE)

    @property
    def is_listening(self) -> bool:
        """Whether this process has subscribed to notifications. Also True if notifications are not used."""
        return self._subscribed.is_set() or not self._wanted

    async def _keep_listening(self) -> None:
        pause = 0.1
        while True:
            try:
                connection = await self._connections.open()
                try:
                    lost = asyncio.Event()
                    connection.add_termination_listener(_setter(lost))
                    await connection.add_listener(self._all, self._received)
                    await connection.add_listener(self.mine, self._received)
                    if self._subscribed.is_set():
                        self.on_gap()  # notifications sent meanwhile are lost
                    self._subscribed.set()
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
        """Wait for the result of the probe, and return whether notifications arrive. Return False if there is none
        after 3 seconds.
        """
        for _ in range(int(_PROBE_PATIENCE / 0.05) + 20):
            if self.works is not None:
                return self.works
            await asyncio.sleep(0.05)
        return False

    async def _probe(self, connection: Any) -> None:
        """Send a notification to this process, and record in `works` whether it arrives. A pooler may drop it."""
        self._probed.clear()
        await connection.execute("SELECT pg_notify($1, $2)", self.mine, _encode(Notification(probe=self.mine)).decode())
        try:
            async with asyncio.timeout(_PROBE_PATIENCE):  # wait_for of Python 3.11 may swallow a cancellation
                await self._probed.wait()
            self.works = True
        except TimeoutError:
            self.works = False

    def _received(self, _connection: object, _pid: int, _channel: str, text: object) -> None:
        try:
            received = _decode(str(text))
        except msgspec.DecodeError:  # another program uses a channel of the same name
            return
        if received.probe == self.mine:
            self._probed.set()
        if received.sender != self.mine:
            for hint in received.jobs:
                self._hint_handler.receive(hint)
            for hint in received.taken:
                self._hint_handler.receive_taken(hint)
        if received.ended:
            self.on_ended(received.ended, Ending(received.generation, received.result) if received.generation else None)

    async def close(self) -> None:
        self._hint_handler.close()
        for task in (self._sending, self._listening):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await task
