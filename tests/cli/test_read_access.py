"""The commands that look, for somebody who may only read: they show everything, and change nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cli.stage import Stage
from tests.servers.ministack import S3Server, ministack_server, s3_server
from tests.servers.read_only import KINDS, Limited, changed_environment, filled

__all__ = ["ministack_server", "s3_server"]

LOOKS = (
    ("list", "--json"),
    ("list", "--state", "dead"),
    ("list", "--sort", "changed"),
    ("status", "job-1"),
    ("status", "job-2"),
    ("tail", "--json", "--no-follow"),
    ("history", "job-1"),
    ("history", "job-1", "--diff"),
    ("queues",),
    ("pools",),
    ("schedules",),
    ("workers",),
    ("dead",),
    ("dead", "--jobs"),
)


@pytest.fixture(params=KINDS)
def limited(request: pytest.FixtureRequest, bare: Stage) -> Iterator[Limited]:
    def server() -> S3Server:
        found: S3Server = request.getfixturevalue("s3_server")
        return found

    with filled(request.param, server) as made, changed_environment(made.environment):
        yield made


def test_every_look_works_and_changes_nothing(limited: Limited, bare: Stage):
    as_writer = {look: bare(*look, "--url", limited.writer).out for look in LOOKS}

    with limited.unchanged():
        as_reader = {look: bare(*look, "--url", limited.reader).out for look in LOOKS}

    assert [look for look in LOOKS if len(as_reader[look].splitlines()) != len(as_writer[look].splitlines())] == []
    assert "job-1" in as_reader["dead", "--jobs"] and "explicit_fail" in as_reader["status", "job-1"]


@pytest.mark.parametrize(
    "change", [("cancel", "job-2"), ("replay", "job-1"), ("pause", "mail"), ("drain", "mail", "--yes")]
)
def test_every_change_is_refused_with_advice(change: tuple[str, ...], limited: Limited, bare: Stage):
    with limited.unchanged():
        refused = bare.refused(*change, "--url", limited.reader)

    assert refused.code == 3
    assert "remove access=read from the URL" in refused.err
