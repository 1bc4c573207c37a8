"""The wheel with each extra alone, in an empty environment, does what the page of the extra says.

The packages come from the index that pip is configured for, so these cases are nightly. The short case beside them is
`test_the_wheel_alone_runs_a_worker` in test_release.py.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from packaging.utils import canonicalize_name

from tests.cli.process import PATIENCE, eventually
from tests.project.page import blocks_of
from tests.project.test_release import PROJECT
from tests.servers.ministack import running_ministack
from tests.servers.ports import free_port
from tests.servers.postgres import PostgresServer, system_binaries, wheel_binaries
from tests.servers.redis_server import RedisServer
from tools.install_part import of_extras

ROOT = Path(__file__).resolve().parents[2]
FIRST = blocks_of((ROOT / "README.md").read_text("utf-8"))[0]
TASKS = """
from millrace import App
app = App("sqlite:///jobs.db")

@app.task
async def send_email(to: str) -> str:
    return f"sent to {to}"
"""
ENQUEUE = "from tasks import send_email; send_email.sync.enqueue('ada')"
STATES = "from tasks import app; print([job.state for job in app.sync.jobs.find()])"
ROUND = """
import asyncio, sys
from tasks import app, send_email

async def main():
    app.use(sys.argv[1])
    async with app, app.worker():
        job = await send_email.enqueue("ada")
        print(await job.result(wait="60s"))

asyncio.run(main())
"""


class Empty:
    """An environment with the wheel and one extra, and a folder with an app."""

    def __init__(self, folder: Path, wheel: Path, extra: str) -> None:
        self.folder, self.bin = folder, folder / "environment" / "bin"
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("MILLRACE", "PYTHON"))}
        self.environ = {**kept, "PATH": os.pathsep.join([str(self.bin), os.environ["PATH"]])}
        subprocess.run([sys.executable, "-m", "venv", str(folder / "environment")], check=True)
        self.run(
            "pip", "install", "--quiet", "--disable-pip-version-check", f"{wheel}[{extra}]" if extra else str(wheel)
        )
        (folder / "tasks.py").write_text(TASKS, "utf-8")

    def run(self, *words: str, code: int = 0) -> str:
        """Run a program of the environment, and return what it prints."""
        done = self.start(*words)
        out, err = done.communicate(timeout=3_000)
        assert done.returncode == code, out + err
        return out + err if code else out

    def start(self, program: str, *words: str) -> subprocess.Popen[str]:
        command, pipe = [str(self.bin / program), *words], subprocess.PIPE
        return subprocess.Popen(command, cwd=self.folder, env=self.environ, stdout=pipe, stderr=pipe, text=True)

    @contextmanager
    def started(self, *words: str) -> Iterator[None]:
        process = self.start(*words)
        try:
            yield
        finally:
            process.terminate()
            process.communicate(timeout=PATIENCE)

    def round_on(self, url: str) -> str:
        return self.run("python", "-c", ROUND, url).strip()

    @property
    def packages(self) -> set[str]:
        listed = json.loads(self.run("pip", "list", "--format=json", "--disable-pip-version-check"))
        return {canonicalize_name(one["name"]) for one in listed}


def of_nothing(empty: Empty) -> None:
    assert empty.packages - {"pip", "setuptools"} == {"millrace", "msgspec"}
    assert empty.run("python", "-c", FIRST.text) == FIRST.output
    assert "pip install 'typer" in empty.run("millrace", "queues", code=2)


def of_cli(empty: Empty) -> None:
    empty.run("millrace", "init")
    empty.run("millrace", "submit", "send_email", '{"to": "ada"}', "--id", "x", "--app", "tasks:app")
    empty.run("millrace", "worker", "--app", "tasks:app", "--burst")
    assert json.loads(empty.run("millrace", "status", "x", "--app", "tasks:app", "--json"))["result"] == "sent to ada"
    summary = empty.run("millrace", "demo", "--seconds", "3", "--no-report", "--dir", "shop")
    assert "pip install 'starlette" in summary and "serve --url sqlite:///" in summary.splitlines()[-1]


def of_worker(empty: Empty) -> None:
    assert not empty.packages & {"typer", "rich", "pydantic", "click"} and "uvloop" in empty.packages
    empty.run("python", "-c", ENQUEUE)
    with empty.started("millrace", "worker", "--app", "tasks:app"):
        eventually(lambda: empty.run("python", "-c", STATES).strip() == "['completed']")


def of_web(empty: Empty) -> None:
    empty.run("python", "-c", ENQUEUE)
    port = str(free_port())
    with empty.started("millrace", "serve", "--url", "sqlite:///jobs.db", "--port", port):
        jobs = _answer(f"http://127.0.0.1:{port}/api/jobs")
        page = _answer(f"http://127.0.0.1:{port}/")
        metrics = _answer(f"http://127.0.0.1:{port}/metrics")
    assert [job["task"] for job in json.loads(jobs)["jobs"]] == ["send_email"]
    assert "<title>" in page and "millrace_jobs" in metrics


def _answer(url: str) -> str:
    found: list[str] = []

    def asked() -> bool:
        try:
            with urlopen(url) as reply:
                found.append(reply.read().decode())
        except URLError:
            return False
        return True

    eventually(asked)
    return found[0]


def of_redis(empty: Empty) -> None:
    server = RedisServer().start()
    try:
        assert empty.round_on(server.url) == "sent to ada"
    finally:
        server.close()


def of_postgres(empty: Empty) -> None:
    binaries = system_binaries() or wheel_binaries()
    assert binaries is not None
    server = PostgresServer(binaries)
    try:
        server.start()
        assert empty.round_on(server.url) == "sent to ada"
    finally:
        server.remove()


def of_s3(empty: Empty) -> None:
    with running_ministack(empty.folder) as server:
        empty.environ |= {"AWS_ACCESS_KEY_ID": server.access_key, "AWS_SECRET_ACCESS_KEY": server.secret_key}
        empty.run("python", "-c", BUCKET, server.endpoint)
        url = f"s3://jobs/shop?endpoint={server.endpoint}&region=us-east-1&versioning=optional"
        assert empty.round_on(url) == "sent to ada"


def of_file(empty: Empty) -> None:
    assert empty.round_on(f"file://{empty.folder}/jobs") == "sent to ada"
    assert "watchfiles" in empty.packages


def of_cron(empty: Empty) -> None:
    assert empty.run("python", "-c", CRON).strip() == "['nightly']"


def of_otel(empty: Empty) -> None:
    assert empty.round_on("memory://") == "sent to ada"
    assert "opentelemetry-api" in empty.packages


def of_speed(empty: Empty) -> None:
    assert empty.run(
        "python",
        "-c",
        ROUND.replace("asyncio.run", "uvloop.run").replace("import asyncio", "import uvloop"),
        "memory://",
    )


def of_spark(empty: Empty) -> None:
    empty.run("python", "-c", ENQUEUE)
    assert empty.run("python", "-c", SPARK).strip().splitlines()[-1] == "['send_email']"


def of_all(empty: Empty) -> None:
    wanted = {re.split(r"[\[<>=; ]", one)[0].lower() for one in of_extras(PROJECT, ["all"])}
    assert empty.packages >= wanted
    assert empty.run("pip", "check").startswith("No broken requirements")
    of_web(empty)


BUCKET = """
import boto3, sys

boto3.client("s3", endpoint_url=sys.argv[1], region_name="us-east-1").create_bucket(Bucket="jobs")
"""
CRON = """
import asyncio
from tasks import app, send_email

app.cron("0 3 * * *", send_email, name="nightly", tz="Europe/Berlin", kwargs={"to": "ada"})

async def main():
    async with app, app.worker():
        while not (found := await app.schedules.page()):
            await asyncio.sleep(0.05)
        print([schedule.name for schedule in found])

asyncio.run(main())
"""
SPARK = """
from pathlib import Path
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[1]").getOrCreate()
url = f"sqlite:///{Path('jobs.db').resolve()}"
jobs = spark.read.format("millrace").options(url=url, table="jobs").load()
print([row.task for row in jobs.select("task").collect()])
"""


def test_every_extra_has_a_case():
    assert {name.removeprefix("of_") for name in globals() if name.startswith("of_")} - {"nothing", "extras"} == {
        *PROJECT["project"]["optional-dependencies"]
    }


@pytest.mark.nightly
@pytest.mark.timeout(3_600)  # `spark` and `all` load 500 MB
@pytest.mark.parametrize("extra", ["", *sorted(PROJECT["project"]["optional-dependencies"])])
def test_an_extra_alone_does_what_its_page_says(extra: str, wheel: Path, tmp_path: Path):
    check: Callable[[Empty], None] = globals()[f"of_{extra or 'nothing'}"]
    check(Empty(tmp_path, wheel, extra))
