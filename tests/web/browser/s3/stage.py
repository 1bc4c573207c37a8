"""A bucket with a store and the dashboard's own files in it, and a browser that opens them from there."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from millrace.app.telemetry.redaction import Redaction
from millrace.cli.init.page import page_files
from millrace.domain.change import Change
from millrace.domain.job import Job, Spec
from millrace.domain.outcome import Failure
from millrace.store.object.options import ObjectOptions
from millrace.store.object.s3 import S3Blobs
from millrace.store.object.s3.address import BucketAddress
from millrace.store.object.s3.admin import BucketAdmin
from millrace.store.object.s3.pages import config_of, page_url, upload
from millrace.store.object.store import ObjectStore
from millrace.store.sweep_report import Swept
from millrace.testing.builders import a_claim
from millrace.testing.invariants import assert_holds, gather
from tests.object.conftest import Bucket
from tests.spark.report.browser import Browser

OPTIONS = ObjectOptions(look_every=0, feed_delay=0, inline_limit=2_000, sweep_patience=0)
PATIENCE = 60.0  # seconds: it only ends a wait for something that never comes


@dataclass
class Site:
    """One store, and the page that looks into it."""

    bucket: Bucket
    name: str = field(default_factory=lambda: f"ui{secrets.token_hex(5)}")

    @property
    def address(self) -> BucketAddress:
        return self.bucket.server.address(self.name)

    @property
    def config(self) -> dict[str, Any]:
        address = self.address
        return {
            "bucket": address.bucket,
            "prefix": address.prefix,
            "endpoint": address.endpoint,
            "region": address.region,
            "addressing": address.addressing,
        }

    @property
    def keys(self) -> dict[str, str | None]:
        server = self.bucket.server
        return {"accessKey": server.access_key, "secretKey": server.secret_key, "sessionToken": server.session_token}

    def driver(self) -> S3Blobs:
        return self.bucket.driver(self.name)

    @asynccontextmanager
    async def store(self) -> AsyncIterator[ObjectStore]:
        store = ObjectStore(self.driver, options=OPTIONS)
        await store.connect()
        try:
            yield store
        finally:
            await store.close()

    def upload(self) -> str:
        """The dashboard as `millrace init` puts it there; its address."""
        admin, files = BucketAdmin(self.address), page_files()
        upload(admin, files, config_of(self.address, files, "1.0", Redaction().phrases))
        return page_url(self.address)


class Page:
    """The driver's module in a page of the bucket's own origin, without any screen."""

    def __init__(self, browser: Browser, modules: str) -> None:
        self.browser = browser
        self._modules = modules

    @classmethod
    def of_the_bucket(cls, browser: Browser, site: Site, url: str) -> Page:
        folder = url.rsplit("/", 1)[0]
        browser.events.clear()
        browser.do("Page.navigate", url=folder + "/config.json")
        browser.until("Page.loadEventFired")
        page = cls(browser, folder + "/drivers/s3")
        page.connect(site)
        return page

    def connect(self, site: Site, **changes: Any) -> None:
        self.run(
            f"globalThis.driver = await {self.module('driver.js')}"
            f".connect({json.dumps({**site.config, **changes})}, {json.dumps(site.keys)})"
        )

    def run(self, script: str) -> Any:
        """The value that an async function with this body returns; an error of the page is an error here."""
        answer = self.browser.do(
            "Runtime.evaluate",
            expression=f"(async () => {{ {script} }})()",
            awaitPromise=True,
            returnByValue=True,
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]["exception"].get("description", answer)
        return answer["result"].get("value")

    def module(self, name: str) -> str:
        """An expression that is one of the driver's modules."""
        return f"(await import({json.dumps(f'{self._modules}/{name}')}))"

    def ask(self, method: str, path: str, query: Any = None, body: Any = None) -> Any:
        """The answer; or what was refused, as {refused: {status, code, detail}}."""
        given = {"query": query or {}, "body": body}
        return self.run(
            f"try {{ return await driver.request({json.dumps(method)}, {json.dumps(path)}, {json.dumps(given)}) }}"
            " catch (error) { if (!error.detail) throw error;"
            " return {refused: {status: error.status, code: error.code, detail: error.detail}} }"
        )

    def get(self, path: str, **query: Any) -> Any:
        return self.ask("GET", path, query)

    def post(self, path: str, body: Any = None) -> Any:
        return self.ask("POST", path, None, body)


class Visit:
    """The dashboard itself, opened from the bucket."""

    def __init__(self, browser: Browser, site: Site, url: str) -> None:
        self.browser, self.site, self.url = browser, site, url
        browser.size(1280)

    def sign_in(self) -> None:
        server = self.site.bucket.server
        self.browser.do("Page.navigate", url=self.url)
        self.until("Open s3://")
        self.fill_in(accessKey=server.access_key, secretKey=server.secret_key)
        self.until("without a server")

    def fill_in(self, **given: str) -> None:
        self.browser.ask(
            f"(() => {{ const given = {json.dumps(given)}; const form = document.querySelector('dialog form');"
            " for (const [name, value] of Object.entries(given)) form.elements.namedItem(name).value = value;"
            " form.querySelector('[type=submit]').click() })()"
        )

    def go(self, screen: str) -> None:
        self.browser.ask(f"location.hash = {json.dumps('#/' + screen)}; 1")

    def press(self, label: str) -> None:
        pressed = self.browser.ask(
            f"(() => {{ const label = {json.dumps(label)}; const found = [...document.querySelectorAll('button')]"
            ".find((one) => one.textContent.trim() === label); found?.click(); return Boolean(found) })()"
        )
        assert pressed, f"there is no button {label!r} in: {self.text}"

    @property
    def text(self) -> str:
        shown: str = self.browser.ask("document.body?.innerText ?? ''")
        return shown

    @property
    def roles(self) -> list[str]:
        found: list[str] = self.browser.ask("[...document.querySelectorAll('main [role]')].map((one) => one.role)")
        return found

    def until(self, *words: str) -> None:
        self._await(lambda text: all(one in text for one in words), f"{words} to be seen")

    def until_gone(self, word: str) -> None:
        self._await(lambda text: word not in text, f"{word!r} to be gone")

    def _await(self, is_so: Callable[[str], bool], what: str) -> None:
        until = time.monotonic() + PATIENCE
        while not is_so(text := self.text):
            assert time.monotonic() < until, f"waited for {what}, and there is: {text[:2000]}"
            time.sleep(0.05)


@contextmanager
def watching(browser: Browser) -> Iterator[list[str]]:
    """What the page complains of meanwhile: errors in the console, exceptions that nobody caught."""
    found: list[str] = []
    browser.events.clear()
    yield found
    browser.do("Runtime.evaluate", expression="0")  # whatever has happened is told before this is answered
    for event in browser.events:
        match event.get("method"):
            case "Runtime.exceptionThrown":
                found.append(str(event["params"]["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if event["params"]["type"] == "error":
                found.append(str(event["params"]["args"]))
            case "Log.entryAdded" if event["params"]["entry"]["level"] == "error":  # what a policy forbids is told here
                entry = event["params"]["entry"]
                if not entry.get("url", "").endswith("/ui/health"):  # so the page finds out that nobody serves it
                    found.append(f"{entry['text']} {entry.get('url')}")


# ── jobs in all states ────────────────────────────────────────────────────────────────────────


async def died(store: ObjectStore, spec: Spec, message: str = "no route to host") -> Job:
    return await ended(store, spec, Change.bury(Failure("OSError", message, "Traceback …"), "explicit_fail"))


async def completed(store: ObjectStore, spec: Spec, result: bytes = b'"done"') -> Job:
    return await ended(store, spec, Change.completed(result))


async def ended(store: ObjectStore, spec: Spec, change: Change) -> Job:
    await store.enqueue([spec])
    [job] = await store.claim(a_claim(queue=spec.queue, tasks=[spec.task]))
    assert job.id == spec.id
    await store.settle([(job.lease, change)])
    [found] = await store.get([spec.id])
    assert found is not None
    return found


async def assert_sound(site: Site, *, leftovers: bool = False) -> None:
    """Another process opens the bucket: every invariant holds, and a full sweep finds nothing to put right."""
    async with site.store() as store:
        assert_holds(await gather(store))
        swept = await store.sweep(full=True)
        found = {name: getattr(swept, name) for name in Swept.__struct_fields__ if name not in ("looked_at", "more")}
        if leftovers:
            found.pop("index_removed")
        assert not any(found.values()), found
        assert_holds(await gather(store))
