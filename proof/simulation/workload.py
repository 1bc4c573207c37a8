"""What a simulated fleet is given to do: jobs drawn from a seed, each with a script of how its runs go.

A job's payload says what its first, second, third … run does, so that a run behaves the same in every replay
whoever makes it. Durations are milliseconds, as in a spec.
"""

from __future__ import annotations

import random

import msgspec

from millrace.domain.job import OnHit, Scope, Spec
from millrace.domain.retry import RetryPolicy

LEASE = 4_000
TIMEOUT = 3_000
RETRY = RetryPolicy(initial=300, factor=2.0, maximum=3_000)
OPEN, OTHER, LIMITED, POOL = "open", "other", "limited", "pool"
QUEUES = (OPEN, OTHER, LIMITED, POOL)
LANES = 2
RATE, BURST, MAX_RUNNING = 4.0, 3, 2

_ENDINGS = ("ok", "ok", "ok", "ok", "ok", "carry", "bury", "fail")
_DETOURS = ("fail", "fail", "retry", "snooze", "snooze", "hang", "stubborn", "progress")


SETTINGS: dict[str, dict[str, object]] = {
    LIMITED: {"rate": RATE, "burst": BURST, "max_running": MAX_RUNNING, "fair_share": 0.25},
    OTHER: {"on_empty": "emptied"},
    POOL: {"lanes": LANES},
}


class Script(msgspec.Struct, frozen=True):
    """`runs[n]` is what attempt n + 1 does, the last one what all later ones do; each takes `takes` milliseconds."""

    runs: tuple[str, ...]
    takes: int = 100


class Batch(msgspec.Struct, frozen=True):
    """Enqueued together, `after` so many milliseconds since the one before."""

    after: int
    specs: tuple[Spec, ...]


_HITS: dict[str, tuple[OnHit, ...]] = {
    "live": ("keep", "keep", "replace"),
    "retained": ("keep", "keep", "replace"),
    "window": ("keep", "keep", "replace", "extend"),
}


def draw_workload(chance: random.Random, producer: str, jobs: int) -> list[Batch]:
    batches: list[Batch] = []
    known: list[str] = []
    while len(known) < jobs:
        size = min(chance.choice((1, 1, 1, 2, 3, 6)), jobs - len(known))
        specs = []
        for _ in range(size):
            specs.append(_draw_spec(chance, f"{producer}-{len(known)}", known))
            known.append(specs[-1].id)
        batches.append(Batch(chance.randrange(0, 2_500), tuple(specs)))
    return batches


def _draw_spec(chance: random.Random, name: str, known: list[str]) -> Spec:
    script = _draw_script(chance)
    odds = chance.random
    keyed = odds() < 0.15
    scope: Scope = "live" if odds() < 0.7 else "window"
    return Spec(
        id=name,
        task="play",
        token=f"token-{name}",
        queue=chance.choice((OPEN, OPEN, OTHER, LIMITED, POOL)),
        payload=msgspec.json.encode({"script": script}),
        priority=chance.choice((0, 0, 0, 1, 5)),
        delay=chance.randrange(1, 8_000) if odds() < 0.25 else 0,
        expires=chance.randrange(2_000, 20_000) if odds() < 0.05 else None,
        group=f"group-{chance.randrange(3)}" if odds() < 0.35 else None,
        retry_blocks=odds() < 0.8,
        key=f"key-{chance.randrange(3)}" if keyed else None,
        scope=scope if keyed else "live",
        window=chance.randrange(1_000, 10_000) if keyed and scope == "window" else 0,
        on_hit=chance.choice(_HITS[scope]) if keyed else "keep",
        after=tuple(sorted(set(chance.choices(known[-6:], k=2)))) if known and odds() < 0.2 else (),
        on_dependency="bury" if odds() < 0.6 else "run",
        max_attempts=chance.choice((2, 3, 4, 4)),
        max_stalls=chance.choice((2, 3, 3)),
        retry=RETRY,
        timeout=TIMEOUT,
        on_timeout="retry" if odds() < 0.8 else "bury",
        lease=LEASE,
        on_dead_letter="obituary" if odds() < 0.3 else None,
    )


def _draw_script(chance: random.Random) -> Script:
    takes = chance.choice((0, 10, 100, 400, 1_500))
    if chance.random() < 0.03:
        return Script(("poison",), takes)
    detours = tuple(chance.choice(_DETOURS) for _ in range(chance.choice((0, 0, 0, 1, 1, 2, 3))))
    return Script((*detours, chance.choice(_ENDINGS)), takes)
