"""One URL moves a program: the README's first example, as it stands there, on every store that outlives a process."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.project.page import Block, Session, assert_printed, blocks_of
from tests.servers import postgres, redis_server

README = Path(__file__).resolve().parents[2] / "README.md"
URL = re.compile(r'App\("([^"]+)"\)')


@pytest.fixture
def url(name: str, tmp_path: Path) -> str:
    if name == "sqlite":
        return f"sqlite:///{tmp_path}/jobs.db"
    if name == "directory":
        return f"file://{tmp_path}/jobs"
    return postgres.url_for(tmp_path) if name == "postgres" else redis_server.url_for(tmp_path)


def moved(block: Block, url: str) -> Block:
    """The same program, but for the URL, which it has in one place."""
    assert len(URL.findall(block.text)) == 1
    return Block(URL.sub(lambda _: f'App("{url}")', block.text), block.line, block.output)


@pytest.mark.parametrize("name", ["directory", "postgres", "redis", "sqlite"])
async def test_the_first_example_of_the_readme_runs_on_another_store_by_its_url_alone(
    name: str, url: str, tmp_path: Path
) -> None:
    example = blocks_of(README.read_text(encoding="utf-8"))[0]
    assert example.output == "welcome sent to ada@example.com\nenqueued claimed completed\n"

    printed = await Session(README, tmp_path, str).run(moved(example, url))

    assert_printed(example, printed)
