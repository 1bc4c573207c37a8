"""Figures from clocks and from /proc; on a system without /proc, CPU of servers, idle CPU and RSS are left out."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

IDLE = 3.0  # seconds over which a waiting worker is watched
SETTLING = 1.5  # seconds it gets before that, to finish starting up
BARE_POLL = 0.01  # seconds between two looks, where a peer leaves the polling to its user
ROUND_TRIPS = 50  # of which
WARM_UP = 3  # are not counted
SERVER = "MILLRACE_BENCH_SERVER_PID"  # names the server of a run to its processes
SETTLED = 0.05  # seconds, after which the CPU of a connection that has just ended is in its server's stat
TICK = 1 / os.sysconf("SC_CLK_TCK")


class Spent(NamedTuple):
    """What a measured section took, in seconds: of the clock, of CPU in its process, and of CPU in the server."""

    seconds: float
    cpu: float | None
    server: float | None


class Watch:
    """Measures from its creation to `spent`; the CPU of this process, or of another one."""

    def __init__(self, pid: int | None = None) -> None:
        self._pid = pid
        self._server = server_seconds()
        self._cpu = self._process()
        self._since = time.perf_counter()

    def spent(self) -> Spent:
        seconds = time.perf_counter() - self._since
        cpu = difference(self._process(), self._cpu)
        if self._server is not None:
            time.sleep(SETTLED)
        return Spent(seconds, cpu, difference(server_seconds(), self._server))

    def _process(self) -> float | None:
        return time.process_time() if self._pid is None else cpu_seconds(self._pid)


def difference(after: float | None, before: float | None) -> float | None:
    return None if after is None or before is None else after - before


@contextmanager
def serves(pid: int) -> Iterator[None]:
    """Name the server to the processes that are started while this block runs."""
    os.environ[SERVER] = str(pid)
    try:
        yield
    finally:
        del os.environ[SERVER]


def server_seconds() -> float | None:
    """CPU of the server and its children. What children that have ended used is kept in the stat of the server."""
    pid = os.environ.get(SERVER)
    if pid is None:
        return None
    total = 0.0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        own = stat.parent.name == pid
        if own or fields[1] == pid:
            total += cpu_seconds(int(stat.parent.name)) or 0.0
        if own:
            total += (int(fields[13]) + int(fields[14])) * TICK
    return total


def milliseconds(seconds: Sequence[float]) -> dict[str, float]:
    ordered = sorted(1_000 * one for one in seconds)
    return {"p50": quantile(ordered, 0.50), "p99": quantile(ordered, 0.99)}


def quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, round(share * (len(ordered) - 1)))]


def medians(rounds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Figure by figure, over the rounds that have it."""
    names = dict.fromkeys(name for one in rounds for name in one)
    return {name: median(one[name] for one in rounds if name in one) for name in names}


def cpu_seconds(pid: int) -> float | None:
    """Time on a core of all threads of a process: to the nanosecond, where a tick would be a third of a per cent."""
    threads = list(Path(f"/proc/{pid}/task").glob("*/schedstat"))
    if not threads:
        return None
    try:
        return sum(int(thread.read_text(encoding="ascii").split()[0]) for thread in threads) / 1e9
    except OSError:
        return None


def rss_mib(pid: int) -> float | None:
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS:")), None)


class Idle:
    """From here to `figures`, the process waits: how much CPU does it use for that?"""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._cpu = cpu_seconds(pid)
        self._since = time.perf_counter()

    def figures(self) -> dict[str, float]:
        cpu, rss = cpu_seconds(self._pid), rss_mib(self._pid)
        if self._cpu is None or cpu is None or rss is None:
            return {}
        return {"idle_cpu": 100 * (cpu - self._cpu) / (time.perf_counter() - self._since), "rss": rss}
