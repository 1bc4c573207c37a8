"""Tasks that depend on the event loop of their worker, for `test_worker_loop.py`."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys

from millrace import App

app = App("memory://")
SAY = [sys.executable, "-c", "print('hello')"]


@app.task
async def loop_of_worker() -> str:
    return type(asyncio.get_running_loop()).__name__


@app.task(process=True)
async def loop_of_child() -> str:
    return type(asyncio.get_running_loop()).__name__


@app.task
async def clock_steps() -> int:
    """How many different times the loop's clock shows within 20 ms."""
    time = asyncio.get_running_loop().time
    end, seen = time() + 0.02, set()
    while (now := time()) < end:
        seen.add(now)
    return len(seen)


@app.task
def thread_starts_a_process() -> str:
    return subprocess.run(SAY, capture_output=True, text=True, check=True).stdout.strip()


@app.task
async def loop_starts_a_process() -> str:
    child = await asyncio.create_subprocess_exec(*SAY, stdout=asyncio.subprocess.PIPE)
    out, _ = await child.communicate()
    return out.decode().strip()


@app.task
async def loop_starts_a_process_that_is_killed() -> int:
    child = await asyncio.create_subprocess_exec("sleep", "60")
    child.send_signal(signal.SIGKILL)
    return await child.wait()


@app.task
def thread_forks() -> int:
    """The forked process ends at once; a worker that shares its loop with it must not notice."""
    child = os.fork()
    if child == 0:
        os._exit(7)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@app.task
def thread_forks_and_runs_a_loop() -> int:
    child = os.fork()
    if child == 0:
        try:
            os._exit(asyncio.run(asyncio.sleep(0.01, result=8)))
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@app.task
async def pack(seconds: float = 0.0) -> None:
    await asyncio.sleep(seconds)
