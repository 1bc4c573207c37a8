"""The background work of a web shop: the app that `millrace demo` runs, and an example to read.

Nothing is really sent or charged: a handler sleeps for as long as the remote service would take. Failures are derived
from the arguments of a job, so that the same seed gives the same failures.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import time
import zlib

from millrace import App, Bury, Context, backoff

app = App("memory://")  # the demo and its worker process replace this store
SOON = backoff("200ms", factor=2, maximum="1s")
RATES = "exchange-rates"


class GatewayTimeout(Exception):
    pass


class CardDeclined(Exception):
    pass


class NotFound(Exception):
    pass


def unlucky(percent: int, *what: object) -> bool:
    """Return whether an attempt fails. About `percent` % of attempts do.

    The result depends only on the arguments, so the same attempts fail in every demo.
    """
    return zlib.crc32(repr(what).encode()) % 100 < percent


async def takes(ms: int) -> None:
    await asyncio.sleep(ms / 1000)


# ── mail and text messages ────────────────────────────────────────────────────────────────────


@app.task(queue="mail", retry=SOON)
async def send_email(to: str, template: str, ms: int) -> str:
    await takes(ms)
    if not to.endswith("example.com"):
        raise Bury(f"550 no such mailbox: <{to}>")  # a retry would not help
    return f"{template} sent to {to}"


@app.task(queue="sms", retry=SOON)  # the provider limits the rate: the demo sets a rate limit on the queue
async def send_sms(to: str, ms: int) -> None:
    await takes(ms)


# ── orders: the steps of one customer in order, different customers side by side ───────────────


@app.pool("orders", lanes=4, partition_by=lambda customer, *_: customer, max_attempts=6, retry=SOON)
async def orders(ctx: Context, customer: str, step: int, what: str, ms: int) -> None:
    await takes(ms)
    if unlucky(10, "orders", customer, step, ctx.attempt):
        raise GatewayTimeout("the warehouse did not answer within 2 s")  # its lane waits for it


# ── billing ───────────────────────────────────────────────────────────────────────────────────


@app.task(queue="billing", priority=5, max_attempts=4, retry=SOON)
async def charge_card(ctx: Context, order: int, cents: int, card: str, ms: int) -> str:
    await takes(ms)
    if card == "expired" and not ctx.job.replays:  # before a replay, the customer was asked for another card
        raise CardDeclined(f"card of order {order} has expired")
    if unlucky(30, "charge", order, ctx.attempt):
        raise GatewayTimeout("the payment gateway closed the connection")
    return f"charge-{order}"


@app.task(queue="billing", process=True, max_attempts=2, retry=SOON, timeout=30)
def render_invoice(order: int, logo: str) -> str:
    """Render an invoice. This is CPU-bound work in a child process.

    If the kernel kills the process, no other job is affected.
    """
    if logo == "40-gigapixels.tiff":
        os.kill(os.getpid(), signal.SIGKILL)  # as the kernel does when memory runs out
    page = b"invoice"
    for _ in range(2_000):
        page = hashlib.sha256(page).digest()
    return page.hex()


# ── images: fetch, then three sizes side by side, then publish ─────────────────────────────────


@app.task(queue="images", max_attempts=2, retry=SOON)
async def fetch_image(product: int, url: str, ms: int) -> None:
    await takes(ms)
    if "missing" in url:
        raise NotFound(f"404 for {url}")


@app.task(queue="images")
def resize_image(product: int, width: int, ms: int) -> int:
    time.sleep(ms / 1000)  # a `def` handler runs in a thread
    return width


@app.task(queue="images")
async def publish_product(product: int, ms: int) -> None:
    await takes(ms)


@app.task(queue="images")
async def rebuild_search_index(ms: int) -> None:
    await takes(ms)


# ── reports, schedules, and questions with a waiting caller ────────────────────────────────────


@app.task(queue="reports", priority=8, retry=SOON)
async def sales_report(region: str, ms: int) -> str:
    await takes(ms)
    return f"report for {region}"


@app.task(queue="reports", timeout="500ms", on_timeout="bury")
async def count_stock(warehouse: str, ms: int) -> None:
    await takes(60_000 if warehouse == "W-13" else ms)  # W-13 never answers


@app.cron(every="1s", name=RATES)
@app.task(queue="reports", priority=3)
async def refresh_rates() -> None:
    await takes(20)


@app.task(queue="quotes", priority=9)
async def quote_shipping(country: str, grams: int) -> int:
    await takes(5)
    return 490 + grams // 10
