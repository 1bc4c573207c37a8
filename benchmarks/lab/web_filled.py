"""A store of many jobs, as one looks that is behind with its work: most wait, some of every other kind.

Queue q0 is worked off as it comes, so what has ended there is spread over all of the store; of q3 only the oldest jobs
were run. What has to be looked for among the newest of q3 is therefore far from where a search begins.
"""

from __future__ import annotations

import sys

from millrace import App
from millrace.app.task import Task
from millrace.domain.change import Change
from millrace.domain.job import Spec
from millrace.domain.outcome import Failure
from millrace.domain.request import Claim

CHUNK = 5_000
QUEUES, TASKS, ERRORS = 10, 5, 20
MONTH = 30 * 24 * 3_600_000
MOST_RUNNING = 1_000


async def fill(url: str, jobs: int) -> None:
    """Up to so many jobs; a store that has them is left as it is."""
    app = App(url)
    tasks: list[Task[..., None]] = [app.task(name=f"t{number}")(_nothing) for number in range(TASKS)]
    async with app:
        there = sum(
            one.waiting + one.running + one.completed + one.dead + one.cancelled for one in await app.store.count()
        )
        for number in range(there, jobs, CHUNK):
            size = min(CHUNK, jobs - number)
            numbers = range(number, number + size)
            for marked in (False, True):  # apart: a batch of plain jobs has a shorter way on some stores
                await app.enqueue([_spec(tasks, one) for one in numbers if _is_marked(one) == marked])
            await _work(app, size // QUEUES, running=number < MOST_RUNNING * 100)
            print(f"\r{number + size:,} of {jobs:,}", end="", file=sys.stderr, flush=True)
        if there < jobs:
            ids = [
                job.id async for job in app.jobs.find(state="waiting", limit=jobs // 100, newest_first=True, page=1_000)
            ]
            for start in range(0, len(ids), 1_000):
                await app.jobs.cancel(ids[start : start + 1_000])
    print(file=sys.stderr)


def _spec(tasks: list[Task[..., None]], number: int) -> Spec:
    """Each hundredth is due in a month, each thousandth has a group or a key."""
    made: Spec = (
        tasks[number // QUEUES % TASKS]
        .options(
            queue=f"q{number % QUEUES}",
            group=f"g{number}" if number % 1_000 == 77 else None,
            key=f"k{number}" if number % 1_000 == 242 else None,
            delay=MONTH / 1_000 if number % 100 == 91 else 0,
        )
        .spec(n=number)
    )
    return made


def _is_marked(number: int) -> bool:
    return number % 1_000 in (77, 242) or number % 100 == 91


async def _work(app: App, of_queue: int, running: bool) -> None:
    """All of q0: nine tenths complete, a tenth dies, a few run for long. Of q3 a few complete and a few die."""
    claimed = await app.store.claim(Claim(("q0",), "bench", limit=of_queue, lease=MONTH))
    left = of_queue // 50 if running else 0
    await app.store.settle(
        [
            (job.lease, _death(number) if number % 10 == 3 else Change.completed(b"1"))
            for number, job in enumerate(claimed[left:])
        ]
    )
    few = await app.store.claim(Claim(("q3",), "bench", limit=of_queue // 50, lease=MONTH))
    await app.store.settle(
        [(job.lease, _death(number) if number % 2 else Change.completed(b"1")) for number, job in enumerate(few)]
    )


def _death(number: int) -> Change:
    name = f"{'ABCDEFGHIJKLMNOPQRST'[number // 10 % ERRORS]}Error"
    return Change.bury(Failure(name, f"order {number} cannot be sent", ""), "explicit_fail")


async def _nothing(n: int) -> None: ...
