"""Handlers that tests run in processes: plain functions of a module, so that a child can import them."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import multiprocessing
import os
import signal
import stat
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from millrace import Aborted, Bury, Context, Retry, Snooze

COUNTED = {"jobs": 0}


@dataclass
class Point:
    x: int
    y: int = 0


def add(a: int, b: int = 1) -> int:
    return a + b


async def add_later(a: int, b: int) -> int:
    await asyncio.sleep(0.001)
    return a + b


def moved(point: Point, by: int) -> Point:
    return Point(point.x + by, point.y + by)


def whoami() -> tuple[int, int]:
    COUNTED["jobs"] += 1
    return os.getpid(), COUNTED["jobs"]


def fail(text: str) -> Any:
    raise LookupError(text)


def verdict(which: str) -> Any:
    verdicts = {"retry": Retry("not yet", after=7), "snooze": Snooze(60), "bury": Bury("never")}
    if which.startswith("return"):
        return verdicts[which.partition(" ")[2]]
    raise verdicts[which]


def leave(code: int) -> None:
    os._exit(code)


def quit_politely() -> None:
    sys.exit(3)


def kill_myself(number: int) -> None:
    os.kill(os.getpid(), number)
    time.sleep(30)


def touch_nothing() -> None:
    """A fault in C code: reads the memory at address 0."""
    ctypes.string_at(0)


def grow(megabytes: int) -> int:
    return len(bytearray(megabytes * 2**20))


def leave_something_behind(note: str) -> None:
    left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    Path(note).write_text(str(left.pid))
    os._exit(1)


def grow_and_die(megabytes: int) -> None:
    held = bytearray(megabytes * 2**20)
    os.kill(os.getpid(), signal.SIGABRT if held else signal.SIGKILL)


def looping(note: str) -> None:
    Path(note).write_text(str(os.getpid()))
    while True:
        time.sleep(0.01)


async def looping_async(note: str) -> None:
    Path(note).write_text(str(os.getpid()))
    await asyncio.sleep(60)


def tidy(note: str) -> None:
    """Ends when it is told to, and puts things in order first."""
    file = Path(note)
    file.write_text("began")
    try:
        time.sleep(60)
    finally:
        file.write_text("tidied up")


async def tidy_async(note: str) -> None:
    file = Path(note)
    file.write_text("began")
    try:
        await asyncio.sleep(60)
    finally:
        file.write_text("tidied up")


def deaf(note: str) -> None:
    """Has to be killed; its own child, too."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen(
        [sys.executable, "-c", "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(60)"]
    )
    Path(note).write_text(f"{os.getpid()} {child.pid}")
    while True:
        with contextlib.suppress(BaseException):
            time.sleep(60)


def deaf_and_adrift(note: str) -> None:
    """As on a system that does not kill a child with its parent."""
    ctypes.CDLL(None).prctl(1, 0, 0, 0, 0)
    deaf(note)


def polling(ctx: Context, note: str) -> str:
    """Looks, as a handler in a thread would; the abort interrupts it between two looks."""
    Path(note).write_text("began")
    try:
        while True:
            ctx.cancelled.wait(0.01)
            ctx.check()
    except Aborted as aborted:
        Path(note).write_text(f"{aborted.why}, {ctx.cancelled.is_set()}")
        raise


def tidying(ctx: Context, note: str) -> None:
    """Learns of the abort from `ctx.check()`, and cleans up while the worker's signal is still on its way."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    Path(note).write_text("began")
    try:
        while True:
            ctx.cancelled.wait(0.01)
            ctx.check()
    except Aborted:
        signal.sigtimedwait({signal.SIGHUP}, 0.3)  # by then the signal has arrived
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        Path(note).write_text("tidy")
        raise


def known(ctx: Context) -> dict[str, Any]:
    assert ctx.remaining is not None
    return {
        "id": ctx.id,
        "queue": ctx.queue,
        "task": ctx.task,
        "attempt": ctx.attempt,
        "failures": ctx.failures,
        "headers": ctx.headers,
        "fence": ctx.fence,
        "remaining": 0 < ctx.remaining <= 60,
    }


def talk(ctx: Context, gate: str) -> str:
    ctx.progress({"done": 1})
    for step in range(2, 2_000):
        ctx.progress({"done": step})
    ctx.log.info("half of %d", 2, extra={"colour": "blue"})
    ctx.log.debug("unheard of")
    until = time.monotonic() + 120
    while not Path(gate).exists() and time.monotonic() < until:
        time.sleep(0.01)
    return "told"


def spread(ctx: Context, n: int) -> list[str]:
    from tests.worker.process import shop

    return [ctx.enqueue(shop.receipt.options(id=f"r{i}"), number=i) for i in range(n)]


def loud(text: str) -> None:
    print(f"out {text}")
    print(f"err {text}", file=sys.stderr)


def unbearable() -> Any:
    return object()


def measure(texts: list[str]) -> list[Any]:
    """A batch: each text has its own end."""
    ends = {"": ValueError("empty"), "later": Snooze(60), "never": Bury("no")}
    return [ends.get(text, [len(text), len(texts), os.getpid()]) for text in texts]


async def follow_up(contexts: list[Context], numbers: list[int]) -> dict[str, int]:
    from tests.worker.process import shop

    for ctx, number in zip(contexts, numbers, strict=True):
        ctx.progress(number)
        ctx.enqueue(shop.receipt.options(id=f"f{number}"), number=number)
    return {ctx.id: number * 10 for ctx, number in zip(contexts, numbers, strict=True)}


def batch_that_dies(numbers: list[int]) -> None:
    if 13 in numbers:
        os._exit(4)


def batch_that_hangs(notes: list[str]) -> None:
    Path(notes[0]).write_text(str(os.getpid()))
    time.sleep(60)


def fork_and_go_on(n: int) -> list[Any]:
    """The mistake of forgetting that there are two of us from here on: the copy returns, too, a little later."""
    if os.fork() == 0:
        time.sleep(0.2)
        return ["the copy", n]
    return ["the child", n]


def slowly(n: int) -> list[Any]:
    time.sleep(0.5)
    return ["slowly", n]


def end_a_copy() -> int | None:
    """As `multiprocessing` does, by SIGTERM."""
    copy = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
    copy.start()
    copy.terminate()
    copy.join(10)
    return copy.exitcode


def close_all() -> None:
    os.closerange(3, 256)


def become_another() -> None:
    os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(60)"])


def scribble() -> None:
    for number in range(3, 1_024):
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(os.fstat(number).st_mode):
                os.write(number, b"\0\0\0\4oops")
    time.sleep(60)


class Unflushable:
    def write(self, text: str) -> int:
        return len(text)

    def flush(self) -> None:
        raise RuntimeError("no")


def spoil_stdout() -> str:
    sys.stdout = cast("Any", Unflushable())
    return "done"


def raise_half_a_pair(ctx: Context) -> None:
    ctx.log.warning("about to open %s", "\udc80.txt", extra={"size": 10**30, "name\udc80": "\udc80"})
    raise FileNotFoundError("\udc80.txt")


class NeedsWords(Exception):
    def __init__(self, words: str) -> None:
        super().__init__(words)


def answer_with_a_class(numbers: list[int]) -> list[Any]:
    return [NeedsWords if number == 0 else number for number in numbers]
