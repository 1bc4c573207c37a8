"""The sandbox of a shadow replay, in this process: how runs compare, and that nothing leaves it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millrace import App
from millrace.app.shadow_mode import VARIABLE, is_shadow, shadow_mode
from millrace.contrib.celery import Celery
from millrace.spark.drain.app import AppAddress
from millrace.spark.open import opened
from millrace.spark.shadow.comparing import speed_of
from millrace.spark.shadow.sandbox import Row, SandboxPlan, run_again
from tests.narrowing import the
from tests.spark.programs import shadow_shop
from tests.spark.programs.shadow_shop import app, rows

TO = {"to": "ada"}


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "ledger"
    path.touch()
    monkeypatch.setenv("SHADOW_SHOP_LEDGER", str(path))
    return path


@pytest.fixture
def real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A real store, which the apps have as their own."""
    url = f"sqlite:///{tmp_path}/real.db?durability=relaxed"
    monkeypatch.setenv("SHADOW_SHOP_URL", url)  # for child processes
    with opened(url):
        pass
    before = app.store, shadow_shop.other_app.store
    app.use(url)
    shadow_shop.other_app.use(url)
    yield url
    app.use(before[0])
    shadow_shop.other_app.use(before[1])


async def again(task: str, given: list[Row], url: str | None = None, of: App = app) -> list[dict[str, Any]]:
    store = None if url is None else {"url": url}
    plan = SandboxPlan(AppAddress("tests.spark.programs.shadow_shop", "app"), task, slots=4, store=store)
    with shadow_mode():
        return await run_again(of, plan, given)


def old_app(url: str) -> App:
    """An old version of the app: `charge` has no default yet."""
    old = App(url)

    @old.task
    def amount(n: int) -> int:
        return 10 * n

    @old.task
    def charge(amount: int) -> int:
        return amount

    return old


async def finished(old: App, *ids: str) -> list[Row]:
    """Run all jobs of the store with an old version of the app. Return those with these ids as rows."""
    await old.worker(burst=True).run(handle_signals=False)
    jobs = [the(job) for job in await (await old.connected()).get(ids)]
    return [
        {
            **rows(None)[0],
            "job": job.id,
            "generation": job.generation,
            "headers": job.spec.headers,
            "payload": job.spec.payload,
            "result": job.result,
        }
        for job in jobs
    ]


def jobs_in_store(url: str) -> int:
    with opened(url, reads=True) as found:
        return sum(one.waiting + one.completed for one in found.run(found.store.count()))


async def test_a_run_with_the_same_result_is_the_same_also_if_its_encoding_differs():
    given = rows({"n": 1, **TO}, {"n": 1, **TO}, result=b'{ "ok" : true }')
    given[1]["result"] = b'{"ok":true}'

    assert [row["outcome"] for row in await again("pack", given)] == ["same_result", "same_result"]


async def test_another_result_is_shown_with_both_values():
    [row] = await again("pack", rows({"n": 1, **TO}, result=b'{"ok":false}'))

    assert row["outcome"] == "other_result"
    assert (row["result_before"], row["result_after"]) == ('{"ok":false}', '{"ok":true}')
    assert row["duration_ms_after"] >= 0


async def test_a_result_that_is_not_kept_any_more_is_unknown():
    assert [row["outcome"] for row in await again("pack", rows({"n": 1, **TO}))] == ["unknown_result"]


async def test_errors_are_the_same_if_their_cause_is():
    failed = {"completed": False, "error_type": "ValueError", "error_message": "number 7"}

    same = await again("die", rows({"n": 1}, **failed))
    other = await again("die", rows({"n": 1}, **{**failed, "error_type": "KeyError"}))

    assert [row["outcome"] for row in (*same, *other)] == ["same_error", "other_error"]
    assert (other[0]["error_before"], other[0]["error_after"]) == ("KeyError: number 7", "ValueError: number 1")


async def test_jobs_that_now_fail_or_now_succeed_are_told_apart():
    fails = await again("die", rows({"n": 1}, result=b"null"))
    succeeds = await again("pack", rows({"n": 1, **TO}, completed=False, error_type="ValueError"))

    assert [row["outcome"] for row in (*fails, *succeeds)] == ["now_fails", "now_succeeds"]
    assert (fails[0]["result_before"], fails[0]["error_after"]) == ("null", "ValueError: number 1")


async def test_a_payload_that_does_not_fit_the_new_handler_now_fails():
    [row] = await again("die", rows({"number": 1}, result=b"null"))

    assert row["outcome"] == "now_fails" and "number" in row["error_after"]


async def test_a_job_without_a_payload_is_counted_and_one_that_snoozes_has_not_finished():
    assert [row["outcome"] for row in await again("die", rows(None))] == ["no_payload"]
    assert [row["outcome"] for row in await again("snooze", rows({}, result=b"null"))] == ["unfinished"]


async def test_a_job_that_gets_results_of_other_jobs_runs_with_these_results(real: str, ledger: Path):
    async with old_app(real) as old:
        await old.chain(old.find_task("amount").spec(3), old.find_task("charge")).enqueue(id="flow")
        given = await finished(old, "flow")

    [row] = await again("charge", given, real)

    assert (row["outcome"], ledger.read_text()) == ("same_result", "charge 30\n")


@pytest.mark.parametrize("missing", ["store", "job", "generation", "parent", "result", "later result", "running"])
async def test_a_job_whose_parents_results_are_not_known_does_not_run(missing: str, real: str, ledger: Path):
    async with old_app(real) as old:
        amount = old.find_task("amount").options(keep_result="1ms" if missing == "result" else "1h")
        await old.chain(amount.spec(3), old.find_task("charge")).enqueue(id="flow")
        given = await finished(old, "flow")
        store = await old.connected()
        match missing:
            case "job":
                await old.jobs.delete("flow")
            case "generation":
                given[0]["generation"] = 2
            case "parent":
                await old.jobs.delete("flow/1")
            case "result":
                await asyncio.sleep(0.01)
                await store.maintain(10)
            case "later result":
                await asyncio.sleep(0.01)
                await store.replay(["flow/1"], False)
                await old.worker(burst=True).run(handle_signals=False)
            case "running":
                await store.replay(["flow/1"], False)

    [row] = await again("charge", given, None if missing == "store" else real)

    assert (row["outcome"], ledger.read_text()) == ("no_inputs", "")


async def test_a_chain_of_celery_runs_with_the_result_of_its_first_task(real: str):
    celery = Celery("shop", broker=real)

    @celery.task(name="add")
    def add(*numbers: int) -> int:
        return sum(numbers)

    link = (add.s(1, 2) | add.s(10)).apply_async()
    given = await finished(celery.millrace, link.id)

    for url, outcome in (None, "no_inputs"), (real, "same_result"):
        [row] = await again("add", given, url, of=celery.millrace)
        assert row["outcome"] == outcome


async def test_a_handler_that_reads_its_parents_fails():
    [row] = await again("read_parents", rows({}, result=b"2"))

    assert row["outcome"] == "now_fails" and "ctx.parents()" in row["error_after"]


async def test_a_slower_run_is_called_slower():
    given = rows({"seconds": 0.1}, {"seconds": 0.0}, result=b"0.1", duration_ms=1)
    given[1] |= {"result": b"0.0", "duration_ms": 100_000}

    found = await again("sleep", given)

    assert [(row["outcome"], row["speed"]) for row in found] == [("same_result", "slower"), ("same_result", "faster")]


@pytest.mark.parametrize(
    ("before", "after", "speed"),
    [(100, 120, "similar"), (100, 121, "slower"), (100, 79, "faster"), (0, 5, "similar"), (0, 6, "slower")],
)
def test_small_differences_are_no_speed(before: int, after: int, speed: str):
    assert speed_of(before, after) == speed


async def test_what_a_handler_does_through_its_app_stays_in_the_sandbox(real: str, ledger: Path):
    """Children, enqueues of both kinds, progress and listeners."""
    found = await again("send", rows(*({"n": n, **TO} for n in range(4)), result=b'{"ok":true}'))

    assert [row["outcome"] for row in found] == ["same_result"] * 4
    assert sorted(ledger.read_text().split("\n")) == ["", "send 0", "send 1", "send 2", "send 3"]
    assert jobs_in_store(real) == 0
    assert app.store.url == real and not is_shadow()


@pytest.mark.parametrize("task", ["use_another_app", "enqueue_in_a_process"])
async def test_a_handler_that_would_open_a_real_store_fails_instead(real: str, task: str):
    [row] = await again(task, rows({}, result=b'"enqueued"'))

    assert row["outcome"] == "now_fails" and VARIABLE in row["error_after"]
    assert jobs_in_store(real) == 0
