"""One simulated world: a store, a fleet of nodes, what goes wrong, and everything that is written down about it."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Callable
from contextvars import Context as Variables
from typing import Any

import msgspec

from millrace.domain.event import Event, Kind
from millrace.domain.job import Job, Spec
from millrace.domain.request import Enqueued, Receipt
from millrace.runtime.context import Context
from millrace.runtime.worker import Worker
from millrace.store.memory import MemoryStore
from millrace.testing.clock import START
from millrace.testing.invariants import check as check_evidence
from millrace.testing.invariants import gather
from millrace.testing.simulation_audit import Audit, Run
from millrace.testing.simulation_loop import VirtualLoop
from millrace.testing.simulation_nodes import make_worker, operate, produce
from millrace.testing.simulation_wire import Weather, Wire, run_now
from millrace.testing.simulation_workload import BURST, LIMITED, MAX_RUNNING, QUEUES, RATE, Batch, draw_workload


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
        self.audit = Audit(self.specs)
        self.runs: dict[tuple[int, int], list[Run]] = {}
        self.happened: Counter[str] = Counter()
        self.workers: dict[str, Worker] = {}
        self._wires: dict[str, Wire] = {}
        self._lives = 0
        self._is_over = False
        self._batches: dict[str, list[Batch]] = {}
        self._accepted: dict[str, Enqueued] = {}
        self._answers: dict[str, Enqueued] = {}
        self._cursor = "0"
        self._hash = hashlib.sha256()
        self._paused: set[str] = set()
        self._limited = 0
        self._grants: list[int] = []

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
        run = Run(ctx.id, ctx.seq, ctx.attempt, node, self.now())
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
        self._accepted.update((spec.id, answer) for spec, answer in zip(specs, answers, strict=True))

    def known(self) -> list[str]:
        return list(self._accepted)

    # ── what the store does ───────────────────────────────────────────────────────────────────

    def _witness(self, node: str, name: str, args: tuple[Any, ...], told: Any) -> None:
        """Called at each effect: nothing has happened to the store since the last one."""
        self.happened[name] += 1
        self.note(f"{node} {name} {_summary(told)}")
        if name == "control" and args[0] == "queue" and not isinstance(told, Exception):
            (self._paused.add if told.paused else self._paused.discard)(args[1])
        for event in self._news():
            self._follow(event)
        if name in ("claim", "reclaim") and isinstance(told, list):
            for job in told:
                self.audit.extended(job.seq, job.lease_until)
        elif name == "extend" and isinstance(told, list):
            for extension, receipt in zip(args[0], told, strict=True):
                if receipt is not Receipt.LOST:
                    self.audit.extended(extension.lease.seq, self.now() + extension.by)
        elif name == "enqueue" and isinstance(told, list):
            self._compare_answers(args[0], told)

    def _news(self) -> tuple[Event, ...]:
        page = run_now(self.store.events(self._cursor, 10_000))
        self._cursor = page.cursor
        return tuple(page.events)

    def _follow(self, event: Event) -> None:
        self.note(f"event {event.kind} {event.job} {event.attempt} {event.failures} {event.lease} {event.reason}")
        self.happened[event.kind] += 1
        if event.queue == LIMITED:
            was = self.audit.tracks.get(event.seq)
            ran = was is not None and was.state == "running"
            self._limited += (event.kind is Kind.CLAIMED) - (ran and event.state != "running")
        self.audit.replay((event,))
        if event.kind is Kind.CLAIMED:
            self.audit.require(event.queue not in self._paused, f"{event.job} was claimed in a paused queue (I15)")
            if event.queue == LIMITED:
                self._check_limits(event)

    def _check_limits(self, event: Event) -> None:
        self.audit.require(self._limited <= MAX_RUNNING, f"{self._limited} run in {LIMITED} with {event.job}")
        self._grants.append(event.at)
        for back, since in enumerate(reversed(self._grants)):
            allowed = BURST + RATE * (event.at - since) / 1000
            self.audit.require(back + 1 <= allowed + 0.01, f"{back + 1} grants within {event.at - since} ms (I12)")

    def _compare_answers(self, specs: tuple[Spec, ...], answers: list[Enqueued]) -> None:
        """The same token gets the same answer, whatever has become of the job since."""
        for spec, answer in zip(specs, answers, strict=True):
            first = self._answers.setdefault(spec.token, answer)
            same = (first.status, first.id, first.seq) == (answer.status, answer.id, answer.seq)
            if first.status == "queued":
                self.audit.require(same, f"token {spec.token} was answered {first} and then {answer}")

    # ── the end ───────────────────────────────────────────────────────────────────────

    def calm_down(self) -> None:
        """Nothing goes wrong from here on, and the operator is gone; what it said last may still be on its way."""
        self.weather.calm()
        self.loop.crash("operator")

    def open_queues(self) -> None:
        for queue in QUEUES:
            told = run_now(self.store.control("queue", queue, {"paused": False, "paused_lanes": []}))
            self._witness("world", "control", ("queue", queue), told)

    async def check_store(self) -> None:
        """What the store says about itself holds together, and is what its events say about it (I13, L2)."""
        evidence = await gather(self.store, since=START)
        for violation in check_evidence(evidence):
            self.audit.require(False, str(violation))
        stored = {job.id: job.state for job in evidence.jobs}
        for name, track in self.audit.newest.items():
            self.audit.require(
                stored.get(name) == track.state, f"{name} is {track.state}, stored as {stored.get(name)}"
            )

    def check(self) -> list[str]:
        """Every promise, now that all is over."""
        audit = self.audit
        for name, answer in self._accepted.items():
            audit.require(answer.id in audit.newest, f"{name} was accepted as {answer}, and is gone (I1)")
        for track in audit.unfinished():
            audit.require(False, f"{track.spec.id} is {track.state} although nothing goes wrong any more (L1)")
        audit.compare([run for runs in self.runs.values() for run in runs])
        return audit.problems


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
