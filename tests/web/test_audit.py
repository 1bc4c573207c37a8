"""The audit log: what it keeps, and what nobody can push out of it."""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec
import pytest

from millrace import App
from millrace.web.audit import KEPT, LONGEST, REFUSED_KEPT, Audit
from tests.web.stage import TOKENS, bearer, opened


async def test_those_who_are_not_let_in_push_nobody_out():
    async with opened(App("memory://"), heads={}, tokens=TOKENS) as web:
        await web.ask("POST", "/api/jobs", {"task": "pack", "id": "j"}, 201, headers=bearer("admin"))
        for _ in range(REFUSED_KEPT + 5):
            web.server.audit.note("nobody", "10.0.0.1", "enqueueJob", "/api/jobs", 401, {})
        await web.ask("POST", "/api/jobs/j/cancel", status=401)
        await web.ask("POST", "/api/jobs/j/cancel", status=200, headers=bearer("admin"))
        entries = web.server.audit.latest(KEPT)

    assert [entry.status for entry in entries] == [200, *[401] * REFUSED_KEPT, 201]
    assert [entry.action for entry in entries[:2]] == ["cancelJob", "cancelJob"]


async def test_nobody_can_make_an_entry_long(tmp_path: Path):
    file = tmp_path / "audit.jsonl"
    async with opened(App("memory://"), heads={}, tokens=TOKENS, audit=file) as web:
        await web.ask("POST", f"/api/jobs/{'x' * 50_000}/cancel", status=401)
        [entry] = web.server.audit.latest(9)
    assert len(entry.path) == len(entry.facts["id"]) == LONGEST
    assert len(file.read_bytes()) < 3 * LONGEST


async def test_the_log_says_in_words_what_was_done_to_what(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, "millrace.audit")
    async with opened(App("memory://")) as web:
        await web.enqueue(id="mail-7", queue="post")
        await web.post("/api/jobs/mail-7/cancel")
        await web.post("/api/queues/post/pause")
        await web.post("/api/bulk", {"action": "cancel", "ids": ["mail-7", "mail-8"], "dry_run": False})
        await web.post("/api/jobs/a%0Ab%1b%5B2J/cancel", code=404)
    lines = [record.getMessage() for record in caplog.records if record.name == "millrace.audit"]

    assert "/api/jobs/mail-7/cancel by local from 127.0.0.1: 200" in lines[1]
    assert "/api/queues/post/pause" in lines[2]
    assert '"ids":["mail-7","mail-8"]' in lines[3] and '"not_found":1' in lines[3]
    assert all(line.isprintable() for line in lines)


def test_facts_are_kept_as_they_were_when_noted():
    audit = Audit()
    facts = {"answers": {"done": 1}}
    audit.note("me", "here", "act", "/", 200, facts)
    facts["answers"]["done"] = 2
    assert msgspec.to_builtins(audit.latest(1)[0])["facts"] == {"answers": {"done": 1}}
