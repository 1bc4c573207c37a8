"""Figures from clocks and from /proc; on a system without /proc, idle CPU and RSS are left out."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

IDLE = 3.0  # seconds over which a waiting worker is watched
SETTLING = 1.5  # seconds it gets before that, to finish starting up
BARE_POLL = 0.01  # seconds between two looks, where a peer leaves the polling to its user
ROUND_TRIPS = 50  # of which
WARM_UP = 3  # are not counted


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
