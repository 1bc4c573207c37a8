"""The processes under another one: the JVMs and Python processes that a Spark program started."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Sequence
from pathlib import Path


def children() -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, IndexError, ValueError):
                continue
            found.setdefault(parent, []).append(int(entry.name))
    return found


def below(pid: int) -> list[int]:
    tree, found, rest = children(), [], [pid]
    while rest:
        rest = [child for parent in rest for child in tree.get(parent, [])]
        found += rest
    return found


def executors(pid: int) -> list[int]:
    """The executor JVMs under a process."""
    return [one for one in below(pid) if b"CoarseGrainedExecutorBackend" in command(one) and is_java(one)]


def command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def is_java(pid: int) -> bool:
    return b"java" in command(pid).split(b"\0")[0]


def stop_together(pids: Sequence[int]) -> None:
    _send(signal.SIGSTOP, pids)


def kill_together(pids: Sequence[int]) -> None:
    """By SIGKILL, and so that none of them sees the others go."""
    stop_together(pids)
    _send(signal.SIGKILL, pids)


def _send(number: signal.Signals, pids: Sequence[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
