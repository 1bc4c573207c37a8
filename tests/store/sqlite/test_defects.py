"""A defect of ours inside a thread of the store: callers hear of it, and the store goes on."""

import pytest

from millrace.domain.request import Claim
from millrace.store.sqlite import SqliteStore
from millrace.testing.builders import a_spec


async def test_an_error_that_nobody_foresaw_reaches_its_caller_and_the_writer_lives_on(tmp_path, monkeypatch, caplog):
    store = SqliteStore(tmp_path / "jobs.db")
    await store.connect()

    with monkeypatch.context() as patch:
        patch.setattr(store._process._writer, "_announce", lambda *news: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            await store.enqueue([a_spec(queue="q")])

    await store.enqueue([a_spec(queue="q")])
    assert len(await store.claim(Claim(("q",), "w", 5))) == 2
    assert "unexpected error" in caplog.text
    await store.close()
