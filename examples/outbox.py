"""A transactional outbox without an outbox table: rows and jobs commit together, in both directions.

- An order and the job that announces it are written by one transaction. No message without its order, no order without
  its message, whenever the process dies.
- The handler books the order and completes its job in one transaction. However often the job runs, it is booked once.

Run it: python outbox.py
"""

import asyncio
import sqlite3

from millrace import App, Context

app = App("sqlite:///shop.db")


@app.task
async def announce(ctx: Context, order: int) -> None:
    with sqlite3.connect("shop.db") as conn:
        conn.execute("UPDATE orders SET announced = announced + 1 WHERE id = ?", (order,))
        if ctx.attempt == 1:
            raise ConnectionError("the process dies here")  # the update is rolled back, and the job runs again
        await ctx.complete(within=conn)


async def place_order(conn: sqlite3.Connection, product: str) -> None:
    with conn:  # commits, or rolls back on an error
        order = conn.execute("INSERT INTO orders (product) VALUES (?)", (product,)).lastrowid
        await announce.options(within=conn, retry=[0]).enqueue(order)
        if product == "unicorn":
            raise LookupError("out of stock")


async def main() -> None:
    async with app:  # creates Millrace's tables in the file
        conn = sqlite3.connect("shop.db")
        conn.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, product TEXT, announced INTEGER DEFAULT 0)")
        for product in ("tea", "unicorn", "coffee"):
            try:
                await place_order(conn, product)
            except LookupError as error:
                print(f"{product}: {error}; neither the order nor its job exists")
        await app.worker(burst=True).run()
        for row in conn.execute("SELECT product, announced FROM orders"):
            print(*row)
        print("jobs:", (await app.queue("default").counts()).completed)
        conn.close()


if __name__ == "__main__":
    asyncio.run(main())
