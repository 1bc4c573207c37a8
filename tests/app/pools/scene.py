"""The verbs of the pool tests: a worker that looks often, a store whose wire can be cut, waiting for something."""

import asyncio
import inspect
import random
from collections import Counter

from millrace import App, backoff
from millrace.domain.rules.lanes import lane_of
from millrace.testing import Fault, FaultyStore
from millrace.worker.heartbeat import InlineHeartbeat


def worker(app, **options):
    quick = {"poll_min": 0.005, "poll_max": 0.05, "reap_interval": 0.02, "grace": 0.05}
    return app.worker(**{"heartbeat": InlineHeartbeat, "chance": random.Random(1).random, **quick, **options})


async def burst(app, **options):
    """Run what is claimable now, and what that makes claimable."""
    made = worker(app, burst=True, **options)
    await made.run(handle_signals=False)
    return made


async def until(condition, timeout=60.0):
    """What the condition answers, once that is something."""
    async with asyncio.timeout(timeout):
        while True:
            answer = condition()
            answer = await answer if inspect.isawaitable(answer) else answer
            if answer:
                return answer
            await asyncio.sleep(0.005)


def after(seconds):
    """A retry policy without chance."""
    return backoff(seconds, factor=1, jitter=0)


class Wire:
    """A plan of faults: all is well until somebody cuts the wire."""

    def __init__(self):
        self.is_cut = False

    def __call__(self, method, number):
        return Fault.BEFORE if self.is_cut else None

    def app(self, store):
        return App(FaultyStore(store, self))


def a_key(lane, lanes, but=()):
    """A partition key of that lane."""
    return next(name for name in (f"key-{n}" for n in range(999)) if lane_of(name, lanes) == lane and name not in but)


async def states(app, answers):
    return [job.state for job in await app.jobs.get(answers)]


async def kinds(app, answer):
    return [event.kind.value for event in await app.jobs.history(answer)]


def spread(answers):
    return Counter(answer.lane for answer in answers)
