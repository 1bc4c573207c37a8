"""A small web shop in trouble: jobs of every state, workers well and lost, and what an attacker would put in.

It is made with a clock that begins an hour ago, so that its ages and its throughput look like those of a store
that has been at work.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from millrace import App
from millrace.domain.change import Change
from millrace.domain.job import Job, Spec
from millrace.domain.outcome import Failure
from millrace.domain.request import Claim, WorkerInfo
from millrace.store.clock import system_clock
from millrace.store.sqlite import SqliteStore
from millrace.testing.clock import VirtualClock

QUEUES = ("mail", "images", "money", "reports", "orders", "odd")
TASKS = ("send_mail", "make_thumbnail", "charge_card", "build_report", "take_order", "odd")
MINUTE = 60_000
TIMEOUT = Failure(
    "ConnectTimeout",
    "no answer from payments.example:443 within 5 s",
    'Traceback (most recent call last):\n  File "shop/money.py", line 42, in charge_card\n'
    "    answer = gateway.post(card)\n"
    '  File "shop/gateway.py", line 17, in post\n    raise ConnectTimeout(f"no answer from {host} within 5 s")\n'
    "ConnectTimeout: no answer from payments.example:443 within 5 s\n",
)
BROKEN_IMAGE = Failure("UnidentifiedImageError", "cannot identify image file 'upload-8812.heic'", "")
REFUSED = Failure("SMTPRecipientsRefused", "550 mailbox unavailable", "")
HOSTILE = (
    "<script>document.title = 'owned'</script><img src=x onerror=alert(1)>\x00\x1b[31m\u202egnp.exe\u2066 & \"quoted\""
)

STUCK, SILENT, SOUND = "worker-images-1", "worker-money-2", "worker-mail-1"


class Shop:
    def __init__(self, store: SqliteStore, clock: VirtualClock) -> None:
        self.store, self.clock = store, clock
        self._number = 0

    async def put(self, task: str, queue: str, payload: Any = None, **more: Any) -> str:
        self._number += 1
        job_id: str = more.pop("id", f"{task.replace('_', '-')}-{self._number:05d}")
        payload = {"order": 4_000 + self._number, "customer": "ada@example.com"} if payload is None else payload
        data = json.dumps(payload).encode("utf-8", "surrogatepass")
        await self.store.enqueue([Spec(job_id, task, queue, data, token=f"t{job_id}", **more)])
        return job_id

    async def take(self, queue: str, worker: str = SOUND, limit: int = 1, lease: int = 30_000) -> list[Job]:
        return await self.store.claim(Claim((queue,), worker, limit, lease=lease))

    async def end(self, jobs: Sequence[Job], change: Change) -> None:
        await self.store.settle([(job.lease, change) for job in jobs])

    def later(self, seconds: float) -> None:
        self.clock.advance(seconds)


async def fill(path: Path, now: int | None = None, odd: bool = True) -> None:
    """Some 500 jobs, the newest of them of this very moment; `odd` ones are what an attacker would put in."""
    now = system_clock() if now is None else now
    clock = VirtualClock(now - 60 * MINUTE)
    store = SqliteStore(path, clock=clock, durability="relaxed")
    shop = Shop(store, clock)
    async with App(store):
        await _pools_and_limits(shop)
        await _deaths(shop)
        clock.set(now - 15 * MINUTE)
        await _stuck(shop)
        await _busy_quarter(shop)
        clock.set(now - 90_000)
        await _silent(shop)
        await _waiting(shop)
        await _families(shop)
        if odd:
            await _odd(shop)
        clock.set(now - 2_000)
        await _running(shop)
        await _schedules(App(store))
        clock.set(now)


async def moment(path: Path) -> None:
    """Something happens now: mail is put in, goes out, and one fails."""
    store = SqliteStore(path, durability="relaxed")
    now = system_clock()
    shop = Shop(store, VirtualClock(now))
    async with App(store):
        ids = [await shop.put("send_mail", "mail", id=f"send-mail-{now % 100_000 + n:05d}") for n in range(5)]
        claimed = [job for job in await shop.take("mail", limit=9) if job.id in ids]
        await shop.end(claimed[:-1], Change.completed(duration=700))
        await shop.end(claimed[-1:], Change.retry(REFUSED, delay=30_000))


async def _pools_and_limits(shop: Shop) -> None:
    await shop.store.control("queue", "orders", {"lanes": 4})
    await shop.store.control("queue", "money", {"max_running": 4, "rate": 20.0})
    await shop.store.control("queue", "reports", {"paused": True})


async def _busy_quarter(shop: Shop) -> None:
    """Mail that goes out, in waves: 445 of them."""
    done = b'{"message_id": "<20261115.4711@mail.example>", "accepted": true}'
    for step in range(82):
        wave = 2 + step % 6 + (step // 20 % 2) * 2
        for number in range(wave):
            order = {"id": 4_000 + number, "lines": [1, 2, 3]}
            payload = {"to": f"customer-{number}@example.com", "template": "receipt", "order": order}
            await shop.put("send_mail", "mail", payload)
        claimed = await shop.take("mail", limit=wave)
        shop.later(1.3)
        await shop.end(claimed, Change.completed(done, duration=1_300))
        shop.later(8.7)


async def _deaths(shop: Shop) -> None:
    for _ in range(42):
        await shop.put(
            "charge_card",
            "money",
            {"order": 4_711, "cents": 12_900, "card": {"holder": "Ada", "token": "tok_1"}},
            max_attempts=2,
        )
    for _ in range(11):
        await shop.put("make_thumbnail", "images", {"upload": 8_812, "sizes": [64, 128, 512]}, max_attempts=1)
    for _ in range(3):
        await shop.put("send_mail", "mail", max_attempts=1)
    for change in (Change.retry(TIMEOUT, delay=1_000_000), Change.bury(TIMEOUT, "max_attempts_exceeded")):
        while claimed := await shop.take("money", SILENT, 4):
            shop.later(0.3)
            await shop.end(claimed, change)
        shop.later(1_000)
    await shop.end(await shop.take("images", limit=11), Change.bury(BROKEN_IMAGE, "max_attempts_exceeded"))
    await shop.end(await shop.take("mail", limit=3), Change.bury(REFUSED, "max_attempts_exceeded"))


async def _stuck(shop: Shop) -> None:
    """A worker that is alive, and has been at one job for a quarter of an hour."""
    await shop.put(
        "make_thumbnail",
        "images",
        {"upload": 9_001, "note": "a panorama of 2 gigapixels"},
        id="thumbnail-of-a-panorama",
        timeout=None,
    )
    await shop.take("images", STUCK, lease=3_600_000)


async def _silent(shop: Shop) -> None:
    """A worker that was killed with two jobs in hand."""
    for number in range(2):
        await shop.put("charge_card", "money", id=f"charge-in-limbo-{number}")
    await shop.store.beat(
        WorkerInfo(SILENT, ("money",), ("charge_card",), 4, (), 120, 42, "0.1.0", "shop-2", 812), 15_000
    )
    await shop.take("money", SILENT, 2, lease=600_000)


async def _waiting(shop: Shop) -> None:
    for number in range(60):
        await shop.put("make_thumbnail", "images", {"upload": number, "sizes": [64, 128]})
    for number in range(5):
        await shop.put("send_mail", "mail", delay=(number + 1) * 15 * MINUTE)
    for _ in range(4):
        await shop.put("build_report", "reports", {"month": "2026-10"}, id=f"report-{_}")
    for number in range(14):
        await shop.put("take_order", "orders", group=f"customer-{number % 5}")
    await shop.end(await shop.take("orders"), Change.completed(b'"taken"'))
    failing = await shop.put("send_mail", "mail", id="mail-that-fails")
    for delay in (1_000, 2_000, 600_000):
        [job] = await shop.take("mail")
        assert job.id == failing
        shop.later(0.4)
        await shop.end([job], Change.retry(REFUSED, delay=delay))
        shop.later(delay / 1000 + 0.1 if delay < 10_000 else 0)
    cancelled = [await shop.put("send_mail", "mail", delay=MINUTE) for _ in range(2)]
    await shop.store.cancel(cancelled)


async def _families(shop: Shop) -> None:
    await shop.put("charge_card", "money", id="order-77-charge", delay=3_600_000)
    await shop.put("make_thumbnail", "reports", id="order-77-label")
    await shop.put("take_order", "mail", id="order-77-pack", after=("order-77-charge", "order-77-label"))
    await shop.put("send_mail", "mail", id="order-77-tell", after=("order-77-pack",))
    await shop.put("send_mail", "mail", id="order-77-ask-for-review", after=("order-77-pack",), delay=86_400_000)


async def _odd(shop: Shop) -> None:
    await shop.put(
        "odd",
        "odd",
        {HOSTILE: HOSTILE, "password": "hunter2", "list": [None, True, 1.5, HOSTILE]},
        id=HOSTILE.replace("\x00", ""),
        max_attempts=1,
    )
    [job] = await shop.take("odd")
    await shop.end(
        [job], Change.bury(Failure("Odd" + HOSTILE, HOSTILE, f"Traceback\n  {HOSTILE}"), "max_attempts_exceeded")
    )
    deep: Any = "the bottom"
    for level in range(60):
        deep = {"level": level, "down": deep}
    many = {"many": list(range(20_000)), "long": "x" * 50_000, "deep": deep}
    await shop.put("odd", "odd", many, id="odd/with a slash?and#more", delay=3_600_000)


async def _running(shop: Shop) -> None:
    jobs = await shop.take("images", STUCK, 2) + await shop.take("images", SOUND, 1)
    assert len(jobs) == 3
    for worker, queues, completed in ((SOUND, ("mail", "images"), 1_204), (STUCK, ("images",), 88)):
        info = WorkerInfo(worker, queues, TASKS, 4, (), completed, 3, "0.1.0", "shop-1", 4_711)
        await shop.store.beat(info, 86_400_000)


async def _schedules(app: App) -> None:
    @app.task(name="build_report", queue="reports")
    async def build_report() -> None: ...

    app.cron("0 3 * * *", name="nightly-report")(build_report)
    app.cron("*/15 * * * *", name="stock-check")(build_report)
    for name in ("nightly-report", "stock-check"):
        await app.schedules.pause(name)
    await app.schedules.resume("stock-check")
