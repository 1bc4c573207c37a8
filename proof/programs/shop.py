"""A shop whose purchases and jobs are written in the same transactions: `shop.py FILE produce|work NAME`."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import sys
import time
from contextlib import closing

from millrace import App, Context

PATH, ROLE, NAME = sys.argv[1:4]
app = App(f"sqlite:///{PATH}")


def connect() -> sqlite3.Connection:
    return sqlite3.connect(PATH, timeout=30)


@app.task(lease=0.5, max_attempts=None, max_stalls=None, retry=[0])
async def mail(ctx: Context, purchase: str) -> str:
    with closing(connect()) as mine:
        mine.execute("BEGIN IMMEDIATE")
        mine.execute("UPDATE purchase SET mailed = mailed + 1 WHERE id = ?", (purchase,))
        await ctx.complete("sent", within=mine)
        if random.random() < 0.2:
            mine.rollback()
            raise ConnectionError("try again")
        mine.commit()
    return ""


def produce() -> None:
    with app.sync, closing(connect()) as mine:
        print("up", flush=True)
        n = 0
        while True:
            purchase = f"{NAME}-{n}"
            mine.execute("BEGIN IMMEDIATE")
            mine.execute("INSERT INTO purchase (id) VALUES (?)", (purchase,))
            mail.options(id=purchase, within=mine).sync.enqueue(purchase)
            if random.random() < 0.3:
                mine.rollback()
            else:
                mine.commit()
            n += 1
            time.sleep(0.005)  # it is about being killed, not about how many


async def work(burst: bool) -> None:
    async with app:
        print("up", flush=True)
        await app.worker(burst=burst, slots=4, shutdown_deadline=1).run(handle_signals=False)


if __name__ == "__main__":
    if ROLE == "produce":
        produce()
    else:
        asyncio.run(work(ROLE == "finish"))
