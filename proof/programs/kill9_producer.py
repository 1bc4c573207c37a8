"""A producer to be killed: enqueues its jobs and writes down which of them the store acknowledged.

Started again, it goes on after the last batch it wrote down; the one it does not know about, it asks for again.
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from millrace.app.app import App
from millrace.store.protocol import Store
from proof.programs.kill9_jobs import BATCH, Ledger, read_ledger, spec_of, store_at


def acknowledged(ledgers: Path, name: str) -> int:
    file = ledgers / f"{name}.log"
    if not file.exists():
        return 0
    return max((int(number) + 1 for _, number, *_ in read_ledger(file)), default=0)


async def produce(store: Store, ledgers: Path, name: str, jobs: int, pause: float) -> None:
    ledger = Ledger(ledgers, name)
    async with App(store):
        for start in range(acknowledged(ledgers, name), jobs, BATCH):
            numbers = range(start, min(start + BATCH, jobs))
            answers = await store.enqueue([spec_of(name, number) for number in numbers])
            lines = [
                f"acknowledged {number} {answer.status} {answer.seq}"
                for number, answer in zip(numbers, answers, strict=True)
            ]
            ledger.write("\n".join(lines))
            await asyncio.sleep(pause)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--database", required=True)
    parser.add_argument("--ledgers", type=Path, required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--jobs", type=int, required=True)
    parser.add_argument("--pause", type=float, required=True)
    parser.add_argument("--durability", default="full")
    options = parser.parse_args()
    store = store_at(options.database, options.durability)
    asyncio.run(produce(store, options.ledgers, options.name, options.jobs, options.pause))


if __name__ == "__main__":
    main()
