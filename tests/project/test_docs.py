"""The documentation is true: its examples run, print what they say, and its links lead somewhere."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from millrace import App
from tests.project.page import Block, Session, assert_printed, blocks_of

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").rglob("*.md"))]
# Pages whose blocks make up a project, which a test of their own puts together and runs.
ELSEWHERE = {
    "docs/analytics.md": "tests/spark/analytics/test_docs.py",  # where there is a Spark session
    "docs/howto/fastapi.md": "tests/contrib/test_fastapi.py",  # with a client
    "docs/lake.md": "tests/spark/lake/test_docs.py",  # likewise
    "docs/report.md": "tests/spark/report/test_docs.py",  # likewise
    "docs/spark.md": "tests/spark/test_docs.py",  # where there is a Spark session
    "docs/spark-sink.md": "tests/spark/test_docs.py",  # likewise
    "docs/spark-cluster.md": "tests/spark/test_cluster.py",  # where there is a cluster
    "docs/spark-drain.md": "tests/spark/test_drain_docs.py",  # likewise
    "docs/spark-operations.md": "tests/spark/test_docs.py",  # likewise
    "docs/spark-shadow.md": "tests/spark/test_shadow.py",  # likewise
    "docs/spark-upkeep.md": "tests/spark/test_docs.py",  # likewise
    "docs/testing.md": "tests/testing/test_user_docs.py",
    "docs/tutorial.md": "tests/project/test_tutorial.py",  # with its commands
}
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)|<img [^>]*src=\"([^\"]+)\"")


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def anchors(text: str) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.replace("`", "")).strip().lower().replace(" ", "-") for title in titles}


EXAMPLES = [page for page in PAGES if blocks_of(text_of(page)) and name_of(page) not in ELSEWHERE]


@pytest.mark.timeout(30)
@pytest.mark.parametrize("page", EXAMPLES, ids=name_of)
async def test_the_examples_of_a_page_run_and_print_what_they_say(page, tmp_path, monkeypatch, capsys):
    session = Session(page, tmp_path, lambda: capsys.readouterr().out)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(sys.modules, "page", session.module)
    try:
        for block in blocks_of(text_of(page)):
            assert_printed(block, await session.run(block))
    finally:
        for value in list(vars(session.module).values()):
            if isinstance(value, App):
                await value.close()
        for block in blocks_of(text_of(page)):
            sys.modules.pop(Path(block.file or "").stem, None)  # the next page may have another of that name


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_links_of_a_page_lead_somewhere(page):
    text = text_of(page)
    broken = []
    for link in (first or second for first, second in LINK.findall(text)):
        if "://" in link:
            continue
        target, _, anchor = link.partition("#")
        file = (page.parent / target).resolve() if target else page
        if not file.exists() or (anchor and anchor not in anchors(text_of(file))):
            broken.append(link)

    assert broken == []


def test_every_page_can_be_reached_from_the_readme():
    reached, fresh = set(), [ROOT / "README.md"]
    while fresh:
        page = fresh.pop()
        if page.is_dir():
            fresh += page.glob("*.md")
        if page in reached or page.suffix != ".md" or not page.exists():
            continue
        reached.add(page)
        links = [first or second for first, second in LINK.findall(text_of(page))]
        fresh += [(page.parent / link.partition("#")[0]).resolve() for link in links if "://" not in link]

    assert [name_of(page) for page in PAGES if page not in reached] == []


def test_pages_that_are_tested_elsewhere_are():
    for page, test in ELSEWHERE.items():
        assert page.removeprefix("docs/") in text_of(ROOT / test)


async def test_an_example_that_fails_or_lies_is_found(tmp_path, capsys):
    session = Session(tmp_path / "page.md", tmp_path, lambda: capsys.readouterr().out)
    page = "# Page\n\n```python\nx = 1\nprint(x)  # 2\n```\n\n```python\nraise KeyError(await y)\n```\n"
    lies, fails = blocks_of(page)

    with pytest.raises(AssertionError, match="not in this order"):
        assert_printed(lies, await session.run(lies))
    with pytest.raises(NameError) as error:
        await session.run(fails)
    assert error.traceback[-1].lineno == 8  # where it stands in the page, counted from 0


def test_the_output_of_a_block_is_the_text_block_after_it():
    page = "```python\na\n```\n\nprints:\n\n```text\none\n```\n\n```python\nb\n```\n\n## More\n\n```text\ntwo\n```\n"

    assert blocks_of(page) == [Block("a\n", 1, "one\n"), Block("b\n", 11, None)]
