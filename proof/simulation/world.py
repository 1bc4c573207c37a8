"""One simulated world: a store, a fleet of nodes, what goes wrong, and everything that is written down about it."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Callable
from contextvars import Context as Variables
from typing import Any

import msgspec

from millrace.app.handler.context import Context
from millrace.domain.audit import Evidence, Pause, ReportedRun, check
from millrace.domain.event import Event
from millrace.domain.job import Job, Spec
from millrace.domain.request import Enqueued, Receipt
from millrace.store.memory import MemoryStore
from millrace.testing.clock import START
from millrace.testing.invariants import gather
from millrace.worker.worker import Worker
from proof.simulation.loop import VirtualLoop
from proof.simulation.network import Weather, Wire, run_now
from proof.simulation.nodes import make_worker, operate, produce
from proof.simulation.workload import QUEUES, Batch, draw_workload

MOST_PROBLEMS = 20


class Plan(msgspec.Struct, frozen=True):
    """What a seed decides beforehand. Each fault is on in some worlds only: rare mixtures need room (swarm testing)."""

    workers: int
    slots: int
    producers: int
    jobs: int
    storm: float  # virtual seconds in which things go wrong
    weather: Weather
    mishaps: tuple[str, ...]
    shuffled: bool
    operated: bool


def draw_plan(chance: random.Random) -> Plan:
    def maybe(most: float) -> float:
        return chance.random() * most if chance.random() < 0.5 else 0.0

    weather = Weather(delay=maybe(0.2), lost=maybe(0.15), unanswered=maybe(0.15), doubled=maybe(0.1))
    return Plan(
        workers=chance.randint(2, 4),
        slots=chance.randint(1, 4),
        producers=chance.randint(1, 2),
        jobs=chance.randint(10, 40),
        storm=chance.uniform(15, 40),
        weather=weather,
        mishaps=tuple(name for name in ("crash", "pause", "stop", "producer") if chance.random() < 0.6),
        shuffled=chance.random() < 0.7,
        operated=chance.random() < 0.6,
    )


class World:
    """Implements the nodes' `Ledger`. `say` is told every line of the trace as it is written."""

    def __init__(self, seed: int, say: Callable[[str], None] | None = None) -> None:
        self.seed = seed
        self._say = say
        self.plan = draw_plan(self._chance("plan"))
        self.loop = VirtualLoop(self._chance("order") if self.plan.shuffled else None)
        self.store = MemoryStore(clock=self.now, salt=f"salt{seed}")
        self.weather = msgspec.structs.replace(self.plan.weather)
        self.specs: dict[str, Spec] = {}
        self.runs: dict[tuple[int, int], list[ReportedRun]] = {}
        self.happened: Counter[str] = Counter()
        self.workers: dict[str, Worker] = {}
        self._wires: dict[str, Wire] = {}
        self._lives = 0
        self._is_over = False
        self._batches: dict[str, list[Batch]] = {}
        self._known: list[str] = []
        self._answers: list[tuple[str, Enqueued]] = []
        self._leases: dict[str, int] = {}
        self._events = 0
        self._paused: dict[str, int] = {}  # queue → how many events there were when it was paused
        self._pauses: list[Pause] = []
        self._cursor = "0"
        self._hash = hashlib.sha256()
        self._evidence: Evidence | None = None

    def now(self) -> int:
        return START + round(self.loop.time() * 1000)

    def _chance(self, purpose: str) -> random.Random:
        return random.Random(f"{self.seed}/{purpose}")

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()[:16]

    def close(self) -> None:
        """From here on nothing is written down: what is left of crashed nodes may only tidy up."""
        self._is_over = True

    def note(self, text: str) -> None:
        if self._is_over:
            return
        line = f"{self.loop.time():10.3f}  {text}"
        self._hash.update(line.encode())
        if self._say is not None:
            self._say(line)

    # ── nodes ─────────────────────────────────────────────────────────────────────────────────

    def start_worker(self) -> None:
        self._lives += 1
        node = f"worker-{self._lives}"
        wire = self._wire(node)
        worker = self.workers[node] = make_worker(node, wire, self, self.plan.slots, self._chance(node))
        self.note(f"{node} starts")
        self.loop.start(node, worker.run(handle_signals=False))

    def start_producer(self, name: str) -> None:
        self._lives += 1
        node = f"{name}.{self._lives}"
        if name not in self._batches:
            jobs = self.plan.jobs // self.plan.producers
            self._batches[name] = draw_workload(self._chance(name), name, jobs)
        self.loop.start(node, produce(self._wire(node), self, self._batches[name]))

    def start_operator(self) -> None:
        self.loop.start("operator", operate(self._wire("operator"), self, self._chance("operator")))

    def _wire(self, node: str) -> Wire:
        chance = self._chance(f"wire of {node}")
        wire = Wire(self.store, node, self.loop, self.weather, chance, self._witness, self.happened)
        self._wires[node] = wire
        return wire

    def crash(self, node: str) -> None:
        """The process is gone; a new one takes its place a little later, under another name."""
        if node not in self.workers:
            return
        self.note(f"{node} crashes")
        self.happened["crash"] += 1
        self.loop.crash(node)
        self._wires[node].cut()
        del self.workers[node]
        self.loop.call_later(0.5, self.start_worker, context=Variables())

    def pause(self, node: str, seconds: float) -> None:
        if self.loop.is_up(node):
            self.note(f"{node} stands still for {seconds:.3f} s")
            self.happened["pause"] += 1
            self.loop.pause(node)
            self.loop.call_later(seconds, self.loop.resume, node, context=Variables())

    def stop(self, node: str, restart: bool = True) -> None:
        """In good order, as on SIGTERM."""
        worker = self.workers.pop(node)
        self.note(f"{node} is told to stop")
        self.happened["stop"] += 1
        self.loop.start(node, worker.stop())
        if restart:
            self.loop.call_later(0.5, self.start_worker, context=Variables())

    def replace_producer(self, name: str) -> None:
        for node in [node for node in self._wires if node.startswith(f"{name}.") and self.loop.is_up(node)]:
            self.note(f"{node} crashes")
            self.happened["producer"] += 1
            self.loop.crash(node)
            self._wires[node].cut()
        self.start_producer(name)

    def everything_sent(self) -> bool:
        return not any(self._batches.values())

    # ── what nodes write down ─────────────────────────────────────────────────────────────────

    def begin(self, node: str, ctx: Context) -> None:
        run = ReportedRun(ctx.id, ctx.seq, ctx.attempt, node, self.now())
        self.runs.setdefault(ctx.fence, []).append(run)
        self.note(f"{node} begins {ctx.id} attempt {ctx.attempt}")

    def end(self, ctx: Context, how: str) -> None:
        if self._is_over:
            return
        run = self.runs[ctx.fence].pop()
        self.runs[ctx.fence].append(msgspec.structs.replace(run, ended=self.now(), how=how))
        self.note(f"{run.worker} ends {ctx.id} attempt {ctx.attempt}: {how}")

    def announce(self, spec: Spec) -> None:
        self.specs[spec.id] = spec

    def accepted(self, specs: tuple[Spec, ...], answers: list[Enqueued]) -> None:
        self._known += [spec.id for spec in specs]
        self._answers += [(spec.token, answer) for spec, answer in zip(specs, answers, strict=True)]

    def known(self) -> list[str]:
        return list(dict.fromkeys(self._known))

    # ── what the store does ───────────────────────────────────────────────────────────────────

    def _witness(self, node: str, name: str, args: tuple[Any, ...], told: Any) -> None:
        """Called at each effect: nothing has happened to the store since the last one."""
        self.happened[name] += 1
        self.note(f"{node} {name} {_summary(told)}")
        if name == "control" and args[0] == "queue" and not isinstance(told, Exception):
            self._note_pause(args[1], told.paused)
        for event in self._news():
            self.note(f"event {event.kind} {event.job} {event.attempt} {event.failures} {event.lease} {event.reason}")
            self.happened[event.kind] += 1
            self._events += 1
        if name in ("claim", "reclaim") and isinstance(told, list):
            self._leases.update((job.lease_id, job.lease_until) for job in told)
        elif name == "extend" and isinstance(told, list):
            for extension, receipt in zip(args[0], told, strict=True):
                if receipt is not Receipt.LOST:
                    self._leases[extension.lease.id] = self.now() + extension.by
        elif name == "enqueue" and isinstance(told, list):
            self._answers += [(spec.token, answer) for spec, answer in zip(args[0], told, strict=True)]

    def _note_pause(self, queue: str, paused: bool) -> None:
        if paused:
            self._paused.setdefault(queue, self._events)
        elif queue in self._paused:
            self._pauses.append(Pause(queue, self._paused.pop(queue), self._events))

    def _news(self) -> tuple[Event, ...]:
        page = run_now(self.store.events(self._cursor, 10_000))
        self._cursor = page.cursor
        return tuple(page.events)

    # ── the end ───────────────────────────────────────────────────────────────────────

    def calm_down(self) -> None:
        """Nothing goes wrong from here on, and the operator is gone; what it said last may still be on its way."""
        self.weather.calm()
        self.loop.crash("operator")

    def open_queues(self) -> None:
        for queue in QUEUES:
            told = run_now(self.store.control("queue", queue, {"paused": False, "paused_lanes": []}))
            self._witness("world", "control", ("queue", queue), told)

    async def read_store(self) -> None:
        self._evidence = await gather(self.store, since=START, fixed_limits=True)

    def check(self) -> list[str]:
        """Every promise, now that all is over. A world that got stuck is read here."""
        evidence = self._evidence or run_now(gather(self.store, since=START, fixed_limits=True))
        for queue in list(self._paused):
            self._note_pause(queue, paused=False)
        known = msgspec.structs.replace(
            evidence,
            ordered_to=0,
            specs=self.specs,
            pauses=tuple(self._pauses),
            leases=self._leases,
            answers=self._answers,
            runs=[run for runs in self.runs.values() for run in runs],
            all_ended=True,
        )
        return [str(violation) for violation in check(known)[:MOST_PROBLEMS]]


def _summary(told: Any) -> str:
    """An answer as far as it is the same in every replay: no traceback, no address."""
    if isinstance(told, Exception):
        return type(told).__name__
    if isinstance(told, list):
        return " ".join(map(_summary, told))
    if isinstance(told, Job):
        return f"{told.id}/{told.attempt}/{told.lease_id}"
    if isinstance(told, Enqueued):
        return f"{told.status}:{told.id}:{told.seq}"
    return str(told)
