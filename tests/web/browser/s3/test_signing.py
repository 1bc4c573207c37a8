"""The signer of the page signs as botocore does, whatever is in names, queries and keys."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any
from unittest.mock import patch
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import pytest
from botocore.auth import S3SigV4Auth, S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from millrace.testing.builders import a_spec
from tests.web.browser.s3.stage import Page, Site, completed

AT = datetime(2026, 2, 28, 23, 59, 58, tzinfo=UTC)
SECRET = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
NAMES = (
    "tasks/0/plain.json",
    "a b/ünï/日本/%41/+plus/~tilde/=eq",
    "odd!*'();:@&=+$,?#[]\\^`{|}<>\"",
    "emoji/😀/end.",
)
QUERIES: tuple[dict[str, str], ...] = (
    {},
    {"list-type": "2", "prefix": "a b/ü&=+%/", "start-after": "ready/~*'()", "max-keys": "1000"},
    {"versions": "", "prefix": "x", "key-marker": "x/y z", "version-id-marker": "null"},
    {"versionId": "3/L4kqtJlcpXroDTDmJ+rmSpXd3dIbrHY+MTRCxf3vjVBH40Nr8X8gdRQBpUMLUo"},
)
PLACES = (
    {"bucket": "jobs", "endpoint": "http://127.0.0.1:9000", "region": "us-east-1"},
    {"bucket": "jobs", "endpoint": "https://s3.example.com/base", "region": "eu-central-1", "addressing": "virtual"},
    {"bucket": "my-jobs", "region": "eu-west-3"},
)


@pytest.fixture
async def page(site: Site, opened: Any) -> Page:
    async with site.store():
        return opened()  # type: ignore[no-any-return]


class Frozen(datetime):
    @classmethod
    def now(cls, tz: Any = None) -> datetime:  # type: ignore[override]
        return AT if tz is not None else AT.replace(tzinfo=None)

    @classmethod
    def utcnow(cls) -> datetime:  # type: ignore[override]
        return AT.replace(tzinfo=None)


@pytest.fixture(autouse=True)
def frozen():
    with (
        patch("botocore.auth.get_current_datetime", lambda remove_tzinfo=True: AT.replace(tzinfo=None), create=True),
        patch("botocore.auth.datetime", type("module", (), {"datetime": Frozen}), create=True),
    ):
        yield


def address(place: dict[str, str], name: str) -> str:
    """As boto3 addresses an object."""
    endpoint = urlsplit(place.get("endpoint") or f"https://s3.{place['region']}.amazonaws.com")
    style = place.get("addressing") or ("path" if "endpoint" in place else "virtual")
    folder = endpoint.path + ("" if style == "virtual" else f"/{place['bucket']}")
    host = f"{place['bucket']}.{endpoint.netloc}" if style == "virtual" else endpoint.netloc
    return f"{endpoint.scheme}://{host}{folder}/{quote(name, safe='/~')}"


@pytest.mark.parametrize("token", [None, "FwoGZXIvYXdzE+token/=="])
def test_every_request_is_signed_as_botocore_signs_it(page: Page, token: str | None):
    cases = [
        (place, name, query, method, headers, body)
        for place in PLACES
        for name in NAMES
        for query in QUERIES
        for method, headers, body in (("GET", {}, ""), ("PUT", {"if-match": '"a1b2"'}, '{"n":"ü"}'))
    ]

    ours = page.run(
        f"const {{signer, spelledPath, spelledQuery}} = {page.module('sign.js')};"
        f"const {{placeOf}} = {page.module('bucket.js')};"
        f"const keys = {json.dumps({'accessKey': 'AKIAEXAMPLE', 'secretKey': SECRET, 'sessionToken': token})};"
        f"return Promise.all({json.dumps(cases)}.map(async ([place, name, query, method, headers, body]) => {{"
        "  const where = placeOf(place); where.path = `${where.base}/${spelledPath(name)}`; where.query = query;"
        "  const made = signer({...place, ...keys});"
        f"  const sent = await made.headers(method, where, headers, body, {AT.timestamp() * 1000});"
        "  const asked = spelledQuery(query);"
        "  return {url: where.origin + where.path + (asked && '?' + asked), sent} }))"
    )

    credentials = Credentials("AKIAEXAMPLE", SECRET, token)
    for (place, name, query, method, headers, body), made in zip(cases, ours, strict=True):
        url = address(place, name) + (f"?{urlencode(query, quote_via=quote, safe='~')}" if query else "")
        request = AWSRequest(method, url, dict(headers), body.encode())
        request.context["payload_signing_enabled"] = True
        S3SigV4Auth(credentials, "s3", place["region"]).add_auth(request)
        assert urlsplit(made["url"])[:3] == urlsplit(url)[:3]
        assert sorted(parse_qsl(urlsplit(made["url"]).query, True)) == sorted(query.items())
        assert made["sent"]["authorization"] == request.headers["Authorization"], (place, name, query, method)
        assert made["sent"]["x-amz-content-sha256"] == request.headers["X-Amz-Content-SHA256"]
        assert made["sent"].get("x-amz-security-token") == token


@pytest.mark.parametrize("token", [None, "FwoGZXIvYXdzE+token/=="])
def test_links_are_signed_as_botocore_signs_them(page: Page, token: str | None):
    cases = [(place, name) for place in PLACES for name in NAMES]

    ours = page.run(
        f"const {{signer, spelledPath}} = {page.module('sign.js')};"
        f"const {{placeOf}} = {page.module('bucket.js')};"
        f"const keys = {json.dumps({'accessKey': 'AKIAEXAMPLE', 'secretKey': SECRET, 'sessionToken': token})};"
        f"return Promise.all({json.dumps(cases)}.map(async ([place, name]) => {{"
        "  const where = placeOf(place); where.path = `${where.base}/${spelledPath(name)}`;"
        f"  return signer({{...place, ...keys}}).link('GET', where, 900, {AT.timestamp() * 1000}) }}))"
    )

    for (place, name), made in zip(cases, ours, strict=True):
        request = AWSRequest("GET", address(place, name))
        S3SigV4QueryAuth(Credentials("AKIAEXAMPLE", SECRET, token), "s3", place["region"], expires=900).add_auth(
            request
        )
        assert dict(parse_qsl(made)) == dict(parse_qsl(urlsplit(request.url).query)), (place, name)


async def test_a_link_reads_one_large_payload_without_keys(site: Site, opened: Any):
    large = json.dumps({"text": "x" * 5_000}).encode()
    async with site.store() as store:
        await completed(store, a_spec(id="big", payload=large), result=json.dumps("y" * 5_000).encode())
        page = opened()
        links = page.get("/api/jobs/big/links")["links"]
        assert set(links) == {"input", "output"}
        read = page.run(f"return (await fetch({json.dumps(links['input'])}, {{credentials: 'omit'}})).text()")
        assert read.encode() == large
        broken = links["input"][:-4] + "0000"
        assert page.run(f"return (await fetch({json.dumps(broken)})).status") == 403
        shown = page.get("/api/jobs/big")
        assert shown["payload"]["text"] == "x" * 5_000 and shown["result"] == "y" * 5_000
