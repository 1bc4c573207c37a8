"""An app at the top of a module, as people write it; its store is named by the environment."""

from __future__ import annotations

import os

from millrace import App, Context

app = App(os.environ.get("SHOP_URL", "memory://"))


@app.task(process=True, queue="shop", timeout=20)
def receipt(number: int) -> str:
    return f"receipt {number}"


@app.task(process=True, queue="shop", timeout=20)
async def order(ctx: Context, items: int) -> int:
    for number in range(items):
        await receipt.options(id=f"{ctx.id}-{number}").enqueue(number)  # the child's own way to the store
    return os.getpid()
