"""One bucket server, one browser; each test has a store and a page of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.object.conftest import Bucket, prepared
from tests.servers.ministack import S3Server, ministack_server, s3_server
from tests.spark.report.browser import Browser, chromium
from tests.web.browser.s3.stage import Page, Site

__all__ = ["ministack_server", "s3_server"]


@pytest.fixture(scope="session")
def bucket(s3_server: S3Server) -> Bucket:
    return prepared(s3_server)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture
def site(bucket: Bucket) -> Site:
    return Site(bucket)


@pytest.fixture(scope="session")
def modules(bucket: Bucket) -> str:
    """The dashboard's files, once for all: where they lie says nothing about which store they look into."""
    return Site(bucket).upload()


@pytest.fixture
def opened(browser: Browser, site: Site, modules: str) -> Callable[[], Page]:
    """To be called once there is a store."""
    return lambda: Page.of_the_bucket(browser, site, modules)
