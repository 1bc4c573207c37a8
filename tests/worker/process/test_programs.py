"""Whole programs with process handlers: how they start, and what is left when they are killed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from millrace import App, Query

ROOT = Path(__file__).resolve().parents[3]

SCRIPT = """
    import asyncio, os, sys
    from millrace import App

    app = App("memory://")

    class Sums:
        @staticmethod
        def add(a: int, b: int) -> int:
            return a + b

    add = app.task(name="add", process=True)(Sums.add)

    @app.task(process=True)
    async def where() -> list[str]:
        return [__name__, str(os.getpid()), *sys.argv[1:]]

    async def main() -> None:
        async with app, app.worker():
            print(await add.call(40, 2))
            name, pid, *arguments = await where.call()
            print(name, pid != str(os.getpid()), arguments)

    if __name__ == "__main__":
        asyncio.run(main())
"""


def run(*command: str, cwd: Path = ROOT, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **more}
    return subprocess.run(
        [sys.executable, *command], cwd=cwd, env=environment, capture_output=True, text=True, timeout=580, check=False
    )


def script(folder: Path, text: str = SCRIPT, name: str = "program.py") -> str:
    file = folder / name
    file.write_text(textwrap.dedent(text))
    return str(file)


def test_tasks_of_the_main_file_are_found_by_running_it_again_under_another_name(tmp_path):
    done = run(script(tmp_path), "some", "--arguments")

    assert (done.stdout, done.stderr) == ("42\n__mp_main__ True ['some', '--arguments']\n", "")


def test_tasks_of_a_main_module_are_found_too(tmp_path):
    (tmp_path / "shop").mkdir()
    script(tmp_path / "shop", name="__main__.py")
    (tmp_path / "shop" / "__init__.py").touch()

    done = run("-m", "shop", "x", cwd=tmp_path)

    assert (done.stdout, done.stderr) == ("42\n__mp_main__ True ['x']\n", "")


@pytest.mark.parametrize("archive", [False, True])
def test_tasks_of_a_folder_or_an_archive_that_is_run_are_found_too(tmp_path, archive):
    place = tmp_path / "program"
    place.mkdir()
    script(place, name="__main__.py")
    if archive:
        place = Path(shutil.make_archive(str(place), "zip", place))

    done = run(str(place), "some", "--arguments")

    assert done.stdout.splitlines() == ["42", "__mp_main__ True ['some', '--arguments']"], done.stderr


def test_a_main_file_without_a_guard_is_told_to_add_one_and_enqueues_nothing_twice(tmp_path):
    text = """
        import asyncio
        from millrace import App

        app = App()

        @app.task(process=True)
        def work() -> None: ...

        async def main() -> None:
            await work.enqueue()
            print("enqueued")
            await app.worker().run()

        asyncio.run(main())
    """

    done = run(script(tmp_path, text))

    assert done.returncode == 1
    assert 'Put the code that runs the program under: if __name__ == "__main__":' in done.stderr
    assert done.stdout == "enqueued\n"


def test_a_program_without_a_file_is_refused_when_it_registers_the_task():
    text = "from millrace import App\n@App().task(process=True)\ndef work(): ..."

    done = run("-c", text)

    assert "InvalidInput: task 'work': process=True" in done.stderr
    assert "a program that has no file (python -c, stdin, a notebook). Save it." in done.stderr


def test_a_module_that_only_the_worker_can_import_stops_the_worker_with_the_reason(tmp_path):
    text = """
        import asyncio, os, sys
        from millrace import App
        if os.getppid() != int(os.environ["MADE_BY"]):
            raise ImportError("no licence here")
        app = App()
        @app.task(process=True)
        def work() -> None: ...
        if __name__ == "__main__":
            asyncio.run(app.worker().run())
    """

    done = run(script(tmp_path, text), MADE_BY=str(os.getpid()))

    assert done.returncode == 1
    assert "did not start: it exited with code 1" in done.stderr
    assert "ImportError: no licence here" in done.stderr


async def test_an_app_at_the_top_of_a_module_serves_its_children_too(tmp_path, monkeypatch):
    """A child opens the store on its own, since the store is a file."""
    url = f"sqlite:///{tmp_path}/shop.db"
    monkeypatch.setenv("SHOP_URL", url)
    text = """
        import asyncio
        from tests.worker.process.shop import app, order
        async def main() -> None:
            async with app:
                await order.options(id="o").enqueue(items=3)
                await app.worker(burst=True).run()
        asyncio.run(main())
    """

    done = run("-c", textwrap.dedent(text), SHOP_URL=url)

    assert (done.returncode, done.stderr) == (0, "")
    async with App(url) as app:
        jobs = (await app.store.find(Query())).jobs
    assert {job.id: job.state.value for job in jobs} == dict.fromkeys(("o", "o-0", "o-1", "o-2"), "completed")


def test_a_handler_cannot_put_jobs_into_a_store_that_is_only_in_memory():
    text = """
        import asyncio
        from tests.worker.process.shop import app, order
        async def main() -> None:
            async with app:
                job = await order.options(max_attempts=1).enqueue(items=1)
                await app.worker(burst=True).run()
                print((await app.jobs.get(job)).error.message)
        asyncio.run(main())
    """

    done = run("-c", textwrap.dedent(text))

    assert "cannot use a memory store: it would not be the worker's" in done.stdout


def test_a_killed_worker_leaves_no_child_and_nothing_that_a_child_has_started(tmp_path):
    text = """
        import asyncio, sys
        from millrace import App
        from tests.worker.process import handlers
        app = App()
        deaf = app.task(process=True)(handlers.deaf)
        looping = app.task(process=True)(handlers.looping)
        async def main() -> None:
            await deaf.enqueue(sys.argv[1])
            await looping.enqueue(sys.argv[2])
            await app.worker(processes=2).run()
        asyncio.run(main())
    """
    notes = [tmp_path / "deaf", tmp_path / "looping"]
    worker = subprocess.Popen([sys.executable, "-c", textwrap.dedent(text), *map(str, notes)], cwd=ROOT)
    try:
        wait_for(lambda: all(note.exists() and note.read_text() for note in notes))
        mine = [int(pid) for note in notes for pid in note.read_text().split()]
        mine += [int(pid) for pid in Path(f"/proc/{worker.pid}/task/{worker.pid}/children").read_text().split()]
        assert len(set(mine)) == 4  # two children, what one of them started, and the guard
    finally:
        worker.send_signal(signal.SIGKILL)
        worker.wait()

    wait_for(lambda: not any(alive(pid) for pid in mine))


def test_the_watch_of_a_child_needs_neither_the_guard_nor_linux(tmp_path):
    """Without both, the end of the channel ends the child and what it has started."""
    text = """
        import asyncio, sys
        from millrace import App
        from millrace.worker.process import guard
        from tests.worker.process import handlers
        guard.ProcessGuard.watch = lambda self, pid: None
        app = App()
        deaf = app.task(process=True)(handlers.deaf_and_adrift)
        async def main() -> None:
            await deaf.enqueue(sys.argv[1])
            await app.worker(processes=1).run()
        asyncio.run(main())
    """
    note = tmp_path / "note"
    worker = subprocess.Popen([sys.executable, "-c", textwrap.dedent(text), str(note)], cwd=ROOT)
    try:
        wait_for(lambda: note.exists() and len(note.read_text().split()) == 2)
    finally:
        worker.send_signal(signal.SIGKILL)
        worker.wait()

    wait_for(lambda: not any(alive(int(pid)) for pid in note.read_text().split()))


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_for(condition, patience: float = 60.0) -> None:
    until = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)
