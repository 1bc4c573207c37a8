"""`millrace worker`: options for the children of handlers with process=True."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import millrace.cli.workers.supervisor
from millrace import App, InvalidInput
from millrace.cli.workers.child_options import size
from tests.cli.process import Shell
from tests.cli.stage import Stage

SHOP = ("--app", "tests.cli.shop:app")


@pytest.mark.parametrize(
    ("text", "bytes_"),
    [
        ("500MB", 500_000_000),
        ("500mb", 500_000_000),
        ("512MiB", 512 << 20),
        ("512M", 512 << 20),
        ("1.5GiB", 3 << 29),
        ("2 g", 2 << 30),
        ("20000000", 20_000_000),
        ("20000000b", 20_000_000),
    ],
)
def test_sizes_are_read_as_people_write_them(text: str, bytes_: int):
    assert size("--max-memory-per-child", text) == bytes_


@pytest.mark.parametrize(
    "text", ["", "much", "-1MB", "1XB", "500", "0", "1kB", "9" * 16, "٣MB", "nan", "999999999999T"]
)
def test_a_size_that_can_never_be_right_is_wrong_usage(bare: Stage, text: str):
    with pytest.raises(InvalidInput, match="--max-memory-per-child"):
        size("--max-memory-per-child", text)
    assert bare.refused("worker", "--burst", *SHOP, "--max-memory-per-child", text).code == 2


@pytest.mark.parametrize("option", ["--child-processes", "--max-jobs-per-child"])
def test_counts_begin_at_one(bare: Stage, option: str):
    assert bare.refused("worker", "--burst", *SHOP, option, "0").code == 2


def test_they_reach_the_worker(cli: Stage, monkeypatch: pytest.MonkeyPatch):
    given: dict[str, Any] = {}
    made = App.worker

    def spy(app: App, *arguments: Any, **options: Any) -> Any:
        given.update(options)
        return made(app, *arguments, **options)

    monkeypatch.setattr(App, "worker", spy)
    options = ("--child-processes", "3", "--max-jobs-per-child", "7", "--max-memory-per-child", "1GiB")
    cli("worker", "--burst", *SHOP, *options)

    assert (given["processes"], given["max_jobs_per_child"], given["max_memory_per_child"]) == (3, 7, 1 << 30)


def test_a_supervisor_hands_them_on(bare: Stage, monkeypatch: pytest.MonkeyPatch):
    started: list[list[str]] = []

    class Spy:
        restarts = 0

        def __init__(self, command: Callable[[int], list[str]], *_: Any, **__: Any) -> None:
            started.append(command(1))

        async def run(self) -> int:
            return 0

    monkeypatch.setattr(millrace.cli.workers.supervisor, "Supervisor", Spy)
    given = ["--child-processes", "2", "--max-jobs-per-child", "5", "--max-memory-per-child", "1GiB"]
    bare("worker", "--processes", "2", *SHOP, *given)
    bare("worker", "--processes", "2", *SHOP)

    assert started[0][-6:] == given
    assert not set(given) & set(started[1])


@pytest.mark.slow
@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_child_is_replaced_after_as_many_attempts_as_it_may_take(tmp_path: Path, processes: str):
    (tmp_path / "crunching.py").write_text(
        "import os\nfrom millrace import App\n\napp = App('sqlite:///jobs.db')\n\n\n"
        "@app.task(process=True)\ndef pid() -> int:\n    return os.getpid()\n"
    )
    shell = Shell(tmp_path)
    shell.environ["MILLRACE_APP"] = "crunching:app"
    assert shell.run("init").returncode == 0
    shell.sh("for i in 1 2 3; do millrace submit pid --id job-$i; done")

    done = shell.run(
        "worker", "--burst", "--processes", processes, "--child-processes", "1", "--max-jobs-per-child", "1"
    )
    assert done.returncode == 0, done.stderr

    results = shell.sh("for i in 1 2 3; do millrace status job-$i | grep ^result; done").stdout.split()[1::2]
    assert len(results) == 3 and len(set(results)) == 3
