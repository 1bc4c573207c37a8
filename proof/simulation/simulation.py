"""Simulation: real workers on a virtual clock, a store, and everything that can go wrong between them, from one seed.

    python -m proof.simulation.simulation --seed 7 -v        replay one world and show what happened
    python -m proof.simulation.simulation --seeds 0:5000     run many; a failing one prints the command above

The same seed gives the same world, callback by callback; the digest of its trace proves it. After the storm things
go right again, and then every promise of `docs/guarantees.md` must hold and every job must have ended.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import msgspec

from proof.simulation.loop import Stuck
from proof.simulation.workload import LEASE, SETTINGS
from proof.simulation.world import World

MOST_CALM = 600  # virtual seconds after the storm within which everything must have ended

LAST_WORDS = 8.0  # virtual seconds until every message sent in the storm has arrived, and every node was replaced


class Outcome(msgspec.Struct, frozen=True):
    """What became of one world."""

    seed: int
    digest: str
    problems: tuple[str, ...]
    happened: dict[str, int]
    seconds: float  # virtual

    @property
    def replay(self) -> str:
        return f"python -m proof.simulation.simulation --seed {self.seed} -v"

    def __str__(self) -> str:
        return "\n".join((f"seed {self.seed} breaks promises; replay it with: {self.replay}", *self.problems))


def simulate(seed: int, say: Callable[[str], None] | None = None) -> Outcome:
    """Run one world to its end and judge it."""
    world = World(seed, say)
    loop = world.loop
    problems: list[str] = []
    with _quiet():
        try:
            loop.run_until_complete(_live(world))
        except Stuck as stuck:
            problems.append(str(stuck))
        finally:
            world.close()
            loop.sweep_up()
            loop.close()
    problems += world.check()
    return Outcome(seed, world.digest, tuple(problems), dict(world.happened), loop.time())


async def _live(world: World) -> None:
    chance = random.Random(f"{world.seed}/mishaps")
    for queue, settings in SETTINGS.items():
        await world.store.control("queue", queue, settings)
    for _ in range(world.plan.workers):
        world.start_worker()
    producers = [f"p{number}" for number in range(world.plan.producers)]
    for name in producers:
        world.start_producer(name)
    if world.plan.operated:
        world.start_operator()
    await _storm(world, chance, producers)
    world.note("the storm is over")
    world.calm_down()
    await asyncio.sleep(LAST_WORDS)
    world.open_queues()
    await _all_ended(world)
    await _stop_workers(world)
    await world.read_store()


async def _storm(world: World, chance: random.Random, producers: Sequence[str]) -> None:
    loop = world.loop
    while loop.time() < world.plan.storm:
        await asyncio.sleep(chance.expovariate(1 / 3))
        if not world.plan.mishaps or not world.workers:
            continue
        node = chance.choice(sorted(world.workers))
        match chance.choice(world.plan.mishaps):
            case "crash":
                world.crash(node)
            case "pause":
                world.pause(node, chance.uniform(0.2, 3) * LEASE / 1000)
            case "stop":
                world.stop(node)
            case _:
                world.replace_producer(chance.choice(producers))


async def _all_ended(world: World) -> None:
    """Wait for it, within a bound; who has not ended by then is named by the check."""
    for _ in range(MOST_CALM):
        if world.everything_sent() and not any(queue.waiting + queue.running for queue in await world.store.count()):
            return
        await asyncio.sleep(1.0)


async def _stop_workers(world: World) -> None:
    """In good order: nothing runs, so nothing may be left held or counted."""
    for node in sorted(world.workers):
        world.stop(node, restart=False)
    await asyncio.sleep(LAST_WORDS)


@contextmanager
def _quiet() -> Iterator[None]:
    """Workers log every mishap; here mishaps are the normal case."""
    loggers = [logging.getLogger("millrace"), logging.getLogger("asyncio")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _tell(line: str) -> None:
    sys.stdout.write(line + "\n")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m proof.simulation.simulation", description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, help="replay this one")
    parser.add_argument("--seeds", default="0:200", metavar="FROM:TO", help="run these (default: %(default)s)")
    parser.add_argument("-v", "--verbose", action="store_true", help="show the trace")
    parser.add_argument("--digests", action="store_true", help="show the digest of every trace")
    options = parser.parse_args(arguments)
    first, _, last = options.seeds.partition(":")
    seeds = range(int(first), int(last)) if options.seed is None else [options.seed]
    began = time.perf_counter()
    happened: Counter[str] = Counter()
    failed = 0
    for seed in seeds:
        outcome = simulate(seed, _tell if options.verbose else None)
        happened.update(outcome.happened)
        if outcome.problems:
            failed += 1
            _tell(str(outcome))
        if options.digests or len(seeds) == 1:
            _tell(f"seed {seed}: digest {outcome.digest}, {outcome.seconds:.0f} virtual seconds")
    _tell(", ".join(f"{name} {number}" for name, number in sorted(happened.items())))
    _tell(f"{len(seeds)} worlds, {failed} with broken promises, {time.perf_counter() - began:.1f} s")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
