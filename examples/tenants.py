"""Many tenants on one queue: a tenant with a large backlog cannot keep the others waiting.

- Each tenant is a group. The jobs of a group run one at a time, so a tenant uses at most one slot.
- A limit on the queue protects the service behind it, over all workers.
- `fair_share` gives every fourth claim to the job that is due the longest, so that tenants with a low priority run too.

Run it: python tenants.py
"""

import asyncio

from millrace import App

app = App("sqlite:///tenants.db")
finished: list[str] = []


@app.task(queue="exports")
async def export(tenant: str, part: int) -> None:
    await asyncio.sleep(0.002)
    finished.append(tenant)


async def main() -> None:
    async with app:
        await app.queue("exports").set(max_running=4, fair_share=0.25)
        big = [export.options(group="big").spec("big", part) for part in range(200)]
        paying = [export.options(group="paying", priority=9).spec("paying", part) for part in range(20)]
        small = [export.options(group=f"small-{number}").spec(f"small-{number}", 0) for number in range(20)]
        await app.enqueue(big + paying + small)  # the big tenant is first in the queue
        await app.worker(slots=8, burst=True).run()

    last_small = max(at for at, tenant in enumerate(finished) if tenant.startswith("small"))
    print(len(finished), "exports")
    print("small tenants done before the big one:", finished[last_small:].count("big") > 100)
    print("the paying tenant too:", "paying" not in finished[-100:])


if __name__ == "__main__":
    asyncio.run(main())
