"""What type checkers must see of schedules; see `test_public_api.py` for how this file is checked."""

import subprocess
import sys
from pathlib import Path
from typing import assert_type

from millrace import App, Schedule

ROOT = Path(__file__).resolve().parents[2]

app = App("memory://")


@app.cron("*/5 * * * *", missed="skip", name="often")
@app.cron(every="30s", name="more-often", kwargs={"days": 3})
@app.task
async def clean(days: int = 7) -> int:
    return days


app.cron("0 3 * * *", clean, name="nightly", tz="Europe/Berlin", missed="once", grace="5m", args=(3,))
app.cron(clean.options(queue="slow"), every=3600, name="hourly")


async def a_scheduled_task_is_still_the_task() -> None:
    assert_type(await clean(3), int)
    assert_type(await clean.call(days=3), int)
    assert_type(await app.schedules.page(), list[Schedule])
    assert_type(await app.schedules.pause("nightly"), Schedule)
    assert_type((await app.schedules.resume("nightly")).next_tick, int | None)


def mistakes() -> None:
    app.cron("0 3 * * *", clean, missed="never")  # type: ignore[call-overload]
    app.cron("0 3 * * *", clean, every="3s")  # type: ignore[call-overload]
    app.cron("0 3 * * *", clean, jitter=3)  # type: ignore[call-overload]
    app.cron("0 3 * * *", lambda: None)  # type: ignore[call-overload]
    app.cron(clean, "0 3 * * *")  # type: ignore[call-overload]
    app.cron(clean)  # type: ignore[call-overload]


def test_mypy_agrees_with_this_file() -> None:
    command = [sys.executable, "-m", "mypy", "--warn-unused-ignores", str(Path(__file__))]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr


def test_the_schedules_above_are_declared() -> None:
    assert sorted(app.plans) == ["hourly", "more-often", "nightly", "often"]
