"""Watching over processes: the rules, on processes that cost nothing to start."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from millrace.cli import exits
from millrace.cli.workers.supervisor import Supervisor


def supervisor(
    script: str, count: int = 1, stop_timeout: float = 30.0, once: bool = False, **more: float
) -> Supervisor:
    def command(number: int) -> Sequence[str]:
        return ["sh", "-c", script, "child", str(number)]

    return Supervisor(
        command,
        count,
        os.environ,
        stop_timeout=stop_timeout,
        once=once,
        first=0.01,
        **{"longest": 0.04, "healthy": 60.0, **more},
    )


async def until(what: asyncio.Task[int], happens) -> None:
    while not happens():
        assert not what.done(), what
        await asyncio.sleep(0.01)


async def test_a_child_that_dies_is_started_again_until_it_is_stopped(tmp_path: Path):
    log = tmp_path / "log"
    watched = supervisor(f"echo $1 >> {log}; test $(wc -l < {log}) -ge 4 && exec sleep 60; kill -9 $$")
    running = asyncio.create_task(watched.run())
    await until(running, lambda: log.exists() and len(log.read_text().split()) == 4 and watched.pids)
    watched.stop()

    assert await running == exits.OK  # it died of our SIGTERM, before it could have learnt to listen
    assert watched.restarts == 3


async def test_a_pause_doubles_up_to_the_longest(caplog: pytest.LogCaptureFixture):
    watched = supervisor("exit 1")
    running = asyncio.create_task(watched.run())
    await until(running, lambda: watched.restarts >= 4)
    watched.stop()
    await running

    pauses = [record.args[-1] for record in caplog.records if "restarting" in record.msg]  # type: ignore[index]
    assert pauses[:4] == [0.01, 0.02, 0.04, 0.04]


async def test_good_health_begins_the_pauses_anew(caplog: pytest.LogCaptureFixture):
    watched = supervisor("exit 1", healthy=0.0)
    running = asyncio.create_task(watched.run())
    await until(running, lambda: watched.restarts >= 3)
    watched.stop()
    await running

    pauses = [record.args[-1] for record in caplog.records if "restarting" in record.msg]  # type: ignore[index]
    assert set(pauses) == {0.01}


def ignores(pid: int, number: int) -> bool:
    """Others may be ignored too: a child inherits that from whoever started the tests."""
    [mask] = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("SigIgn:")]
    return bool(int(mask.split()[1], 16) >> (number - 1) & 1)


async def test_what_does_not_stop_is_killed_and_that_is_no_good_end():
    watched = supervisor("trap '' TERM; while :; do sleep 0.01; done", stop_timeout=0.3)
    running = asyncio.create_task(watched.run())
    await until(running, lambda: watched.pids)
    [pid] = watched.pids.values()
    await until(running, lambda: ignores(pid, signal.SIGTERM))
    watched.stop()

    assert await running == exits.NO
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_a_child_that_fails_while_stopping_is_no_good_end(tmp_path: Path):
    ready = tmp_path / "ready"
    watched = supervisor(f"trap 'exit 5' TERM; touch {ready}; while :; do sleep 0.01; done")
    running = asyncio.create_task(watched.run())
    await until(running, ready.exists)
    watched.stop()

    assert await running == exits.NO


async def test_with_once_a_child_that_ended_well_is_not_started_again():
    watched = supervisor("exit 0", count=3, once=True)

    assert await watched.run() == exits.OK
    assert watched.restarts == 0


async def test_one_that_cannot_start_at_all_ends_the_whole():
    watched = supervisor("test $1 = 2 && exit 2; exec sleep 60", count=2)

    assert await watched.run() == exits.USAGE
    assert watched.pids == {}


async def test_once_a_child_has_lived_a_failing_start_is_tried_again():
    watched = supervisor("exit 2", healthy=0.0)
    running = asyncio.create_task(watched.run())
    await until(running, lambda: watched.restarts >= 2)
    watched.stop()

    assert await running == exits.OK


async def test_a_signal_is_passed_on_once_and_a_second_one_too(tmp_path: Path):
    log = tmp_path / "log"
    script = (
        f"trap 'echo x >> {log}; test $(wc -l < {log}) -ge 2 && exit 0' TERM; touch {log}; while :; do sleep 0.01; done"
    )
    watched = supervisor(script)
    running = asyncio.create_task(watched.run())
    await until(running, log.exists)
    os.kill(os.getpid(), signal.SIGTERM)
    await until(running, lambda: log.read_text().split() == ["x"])
    os.kill(os.getpid(), signal.SIGTERM)

    assert await running == exits.OK
    assert log.read_text().split() == ["x", "x"]
