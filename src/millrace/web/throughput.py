"""Throughput over HTTP. What all readers of this server have seen is kept between them, for a quarter of an hour."""

from __future__ import annotations

import asyncio

from millrace.runtime.flow import STEP, WINDOWS, Mark, Point, mark, marks_before, series, unfinished
from millrace.runtime.shape import Plain, seconds, when
from millrace.store.protocol import Store
from millrace.web import given
from millrace.web.route import Answer, Asked, Route

FRESH = 1_000  # milliseconds in which the counters are not asked for again
KEPT = 2_000  # marks


class Flow:
    def __init__(self) -> None:
        self._marks: list[Mark] = []
        self._turn = asyncio.Lock()

    async def marks(self, store: Store) -> list[Mark]:
        async with self._turn:
            now = await store.now()
            if self._marks and 0 <= now - self._marks[-1].at < FRESH:
                return self._marks
            latest = mark(await store.count(), now)
            if not self._marks or now < self._marks[-1].at:  # the first look; or the store's clock was set back
                self._marks = await marks_before(store, latest)
                return self._marks
            since = now - WINDOWS[0] - STEP
            kept = next((n for n, one in enumerate(self._marks) if one.at > since), len(self._marks))
            self._marks = [*self._marks[max(0, kept - 1) :][-KEPT:], latest]
            return self._marks


async def throughput(asked: Asked) -> Answer:
    marks = await asked.house.flow.marks(await asked.house.store())
    points = [_plain(one) for one in series(marks)]
    so_far = _plain(unfinished(marks))
    return Answer({"now": when(marks[-1].at), "step": seconds(STEP), "points": points, "unfinished": so_far})


def _plain(point: Point) -> Plain:
    return {"at": when(point.at), "completed": round(point.completed, 3), "died": round(point.died, 3)}


ROUTES = (
    Route(
        "getThroughput",
        "GET",
        "/api/throughput",
        "viewer",
        "Jobs completed and dead in each step of the last quarter of an hour, oldest first",
        throughput,
        cli="queues --throughput",
        answers={200: given.Throughput},
    ),
)
