"""Wherever a path is typed: a URL is refused before anything is done, and no folder named `s3:` is left."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millrace.cli import exits
from millrace.cli.group import load_command
from millrace.cli.pipeline import group as pipeline
from millrace.cli.root import SECTIONS
from millrace.cli.root import command as parser_of
from tests.cli.stage import Stage

PATHS = {"DIR", "FILE", "FOLDER", "PATH"}  # how the help calls a value that is a path


def commands() -> Iterator[tuple[tuple[str, ...], Any]]:
    for name in (name for commands in SECTIONS.values() for name, *_ in commands):
        if name != "pipeline":
            yield (name,), parser_of(name)
    for name, place in pipeline.COMMANDS.items():
        yield ("pipeline", name), load_command(name, place)


def options() -> Iterator[tuple[tuple[str, ...], str]]:
    for name, parser in commands():
        for option in parser.params:
            kind = getattr(getattr(option, "type_descriptor", None), "annotation", None)
            in_a_bucket = option.opts[0] == "--lake" or name == ("pipeline", "shadow")
            if in_a_bucket:  # as Delta tables can be; tests/spark/lake/test_commands.py
                continue
            if option.opts[0].startswith("--") and (option.metavar in PATHS or kind is Path):
                yield name, option.opts[0]


def test_the_options_that_take_a_path_are_found():
    assert {("pipeline", "report"), ("demo",), ("serve",)} <= {name for name, _ in options()}


@pytest.mark.parametrize(("name", "option"), list(options()))
@pytest.mark.parametrize("url", ["s3://bucket/x.py", "s3a://bucket/x", "hdfs://host/x"])
def test_a_url_is_refused(
    name: tuple[str, ...], option: str, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    given = ["--lake", "lake"] if name == ("pipeline", "report") else []

    ran = Stage(monkeypatch).refused(*name, *given, option, url)

    assert ran.code == exits.USAGE
    assert f"{url.partition(':')[0]}:// is not supported here" in ran.err
    assert list(tmp_path.iterdir()) == []
