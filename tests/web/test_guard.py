"""Every route × role × cross-site header, from the table of routes; and the doors besides (X3).

What is expected is written down here once more, by hand, so that the guard is not its own judge.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from millrace import App, InvalidInput
from millrace.web import application
from millrace.web.guard import Guard, Tokens
from millrace.web.operation import Operation
from millrace.web.problem import Problem
from millrace.web.routes import OPERATIONS
from tests.web.stage import HERE, TOKENS, bearer, opened

RANK = {"open": 0, "nobody": 0, "viewer": 1, "operator": 2, "admin": 3}
SITES: dict[str, dict[str, str]] = {
    "nothing": {},
    "a page of ours": {"sec-fetch-site": "same-origin", "origin": f"http://{HERE}"},
    "ours, no origin": {"sec-fetch-site": "same-origin"},
    "an old browser, ours": {"origin": f"http://{HERE}"},
    "typed": {"sec-fetch-site": "none"},
    "a sister": {"sec-fetch-site": "same-site", "origin": "http://127.0.0.1:9999"},
    "a sister, no origin": {"sec-fetch-site": "same-site"},
    "another site": {"sec-fetch-site": "cross-site", "origin": "https://evil.example"},
    "another site, no origin": {"sec-fetch-site": "cross-site"},
    "an old browser, another site": {"origin": "https://evil.example"},
    "a sandboxed frame": {"sec-fetch-site": "cross-site", "origin": "null"},
    "an old sandboxed frame": {"origin": "null"},
    "contradicting": {"sec-fetch-site": "same-origin", "origin": "https://evil.example"},
}
CHANGES_FROM = {"a page of ours", "ours, no origin", "an old browser, ours"}
LOOKS_FROM = {*CHANGES_FROM, "nothing", "typed"}
CREDENTIALS: dict[str, dict[str, str]] = {
    "nobody": {},
    "a wrong token": {"authorization": "Bearer viewer-token-012345678"},
    "not a bearer": {"authorization": f"Basic {TOKENS['admin']}"},
    **{role: bearer(role) for role in TOKENS},
}


def path_of(route: Operation) -> str:
    return route.path.replace("{id}", "some-job").replace("{name}", "some-queue")


async def status(web: Any, route: Operation, heads: dict[str, str]) -> int:
    body: dict[str, Any] | None = {} if route.changes and route.body is not None else None
    return int((await web.ask(route.method, path_of(route), body, headers=heads)).status_code)


@pytest.mark.parametrize("route", OPERATIONS, ids=lambda route: route.name)
async def test_with_tokens_only_the_role_counts(route: Operation):
    async with opened(App(), heads={}, tokens=TOKENS) as web:
        web.server.shutdown.set()  # so that the stream of events ends
        for (who, credential), (site, heads) in itertools.product(CREDENTIALS.items(), SITES.items()):
            got = await status(web, route, {**credential, **heads})
            case = (route.name, who, site, got)
            if route.role == "open":
                assert got < 400, case
            elif who not in TOKENS:
                assert got == 401, case
            elif RANK[who] < RANK[route.role]:
                assert got == 403, case
            else:
                assert got not in (401, 403, 405, 421, 500), case


@pytest.mark.parametrize("local", ["viewer", "operator", "admin"])
@pytest.mark.parametrize("route", OPERATIONS, ids=lambda route: route.name)
async def test_without_tokens_changes_come_from_pages_of_this_server_only(route: Operation, local: str):
    async with opened(App(), heads={}, local=local) as web:
        web.server.shutdown.set()
        for site, heads in SITES.items():
            got = await status(web, route, heads)
            allowed = site in (CHANGES_FROM if route.changes else LOOKS_FROM) and RANK[local] >= RANK[route.role]
            if route.role == "open" or allowed:
                assert got not in (401, 403, 405, 421, 500), (route.name, site, got)
            else:
                assert got == 403, (route.name, site, got)


@pytest.mark.parametrize("route", OPERATIONS, ids=lambda route: route.name)
async def test_behind_a_login_of_ones_own_its_roles_count_and_other_sites_stay_out(route: Operation):
    """A login is a cookie, which a browser sends along from any site: so the site is looked at for every role."""
    for role in (None, "viewer", "operator", "admin"):
        async with opened(App(), heads={"host": HERE}, role_of=lambda scope, role=role: role) as web:
            web.server.shutdown.set()
            web.client._transport.client = ("10.0.0.7", 1)  # type: ignore[attr-defined]
            for site, heads in SITES.items():
                got = await status(web, route, heads)
                case = (route.name, role, site, got)
                if route.role == "open":
                    assert got < 400, case
                elif site not in (CHANGES_FROM if route.changes else LOOKS_FROM):
                    assert got == 403, case
                elif role is None:
                    assert got == 401, case
                elif RANK[role] < RANK[route.role]:
                    assert got == 403, case
                else:
                    assert got not in (401, 403, 405, 421, 500), case


def test_tokens_and_a_login_exclude_each_other():
    with pytest.raises(InvalidInput, match="not both"):
        application(App(), tokens=TOKENS, role_of=lambda scope: "admin")


@pytest.mark.parametrize("route", OPERATIONS, ids=lambda route: route.name)
@pytest.mark.parametrize(
    ("client", "heads"),
    [
        (("10.0.0.7", 1), {}),
        (("::ffff:10.0.0.7", 1), {}),
        (("127.0.0.1", 1), {"x-forwarded-for": "10.0.0.7"}),
        (("127.0.0.1", 1), {"forwarded": "for=10.0.0.7"}),
        (("127.0.0.1", 1), {"x-real-ip": "10.0.0.7"}),
        (None, {}),
    ],
    ids=["elsewhere", "elsewhere, mapped", "a proxy", "another proxy", "a third proxy", "nobody knows"],
)
async def test_without_tokens_nobody_else_is_served(route: Operation, client: Any, heads: dict[str, str]):
    async with opened(App(), heads={"sec-fetch-site": "same-origin"}) as web:
        web.server.shutdown.set()
        web.client._transport.client = client  # type: ignore[attr-defined]
        got = await status(web, route, heads)
        assert got == 403 if route.role != "open" else got < 400


@pytest.mark.parametrize(
    "head",
    ["via", "x-forwarded-host", "X-Forwarded-Proto", "cf-connecting-ip", "CF-Ray", "true-client-ip", "x-client-ip"],
)
async def test_a_proxy_is_known_by_any_of_its_headers(head: str):
    async with opened(App(), heads={"sec-fetch-site": "same-origin"}) as web:
        assert (await web.ask("GET", "/api/jobs")).status_code == 200
        refused = await web.ask("GET", "/api/jobs", headers={head: "1.1 proxy"}, status=403)
        assert refused.json()["code"] == "not_local"


@pytest.mark.parametrize("host", ["[::1].evil.example", "[::1", "[::1]:evil", "127.0.0.1:evil.example", "localhost:x"])
def test_what_is_no_host_names_nobody(host: str):
    with pytest.raises(Problem):
        Guard(Tokens({})).check_host({"host": host})
    with pytest.raises(InvalidInput, match="not the name of a host"):
        application(App(), hosts=[host])


@pytest.mark.parametrize(
    ("host", "local", "with_tokens"),
    [
        ("127.0.0.1:8321", True, True),
        ("localhost", True, True),
        ("LOCALHOST:8321", True, True),
        ("[::1]:8321", True, True),
        ("127.8.9.1", True, True),
        ("jobs.example.com", True, True),
        ("jobs.example.com:443", True, True),
        ("10.1.2.3:8321", False, True),
        ("evil.example", False, False),
        ("localhost.evil.example", False, False),
        ("127.0.0.1.evil.example", False, False),
        ("jobs.example.com.evil.example", False, False),
        ("", False, False),
    ],
)
async def test_a_name_that_is_not_ours_is_refused(host: str, local: bool, with_tokens: bool):
    for tokens, fine in (({}, local), (TOKENS, with_tokens)):
        async with opened(App(), heads={"host": host}, tokens=tokens, hosts=["jobs.example.com"]) as web:
            for path in ("/", "/health", "/api/jobs"):
                response = await web.ask("GET", path, headers=bearer("viewer") if tokens else {})
                assert response.status_code == (200 if fine else 421), (host, path, bool(tokens))


async def test_any_name_may_be_allowed():
    async with opened(App(), heads={"host": "whatever.example"}, tokens=TOKENS, hosts=["*"]) as web:
        assert (await web.ask("GET", "/health")).status_code == 200


def test_any_name_is_not_allowed_where_nothing_else_protects():
    with pytest.raises(InvalidInput, match="any page"):
        application(App(), hosts=["*"])


async def test_looking_changes_nothing(url: str):
    app = App(url)
    async with opened(app) as web:
        job = await web.enqueue("pack", id="some-job", queue="some-queue")
        before = (
            await app.jobs.history(job),
            await app.queue("some-queue").settings(),
            await app.store.events(None, 100),
        )
        web.server.shutdown.set()
        for route in OPERATIONS:
            if not route.changes:
                for method in ("GET", "HEAD"):
                    assert (await web.ask(method, path_of(route))).status_code < 500, route.name

        after = await app.jobs.history(job), await app.queue("some-queue").settings(), await app.store.events(None, 100)
        assert after == before


@pytest.mark.parametrize("route", OPERATIONS, ids=lambda route: route.name)
async def test_a_refused_change_changes_nothing_and_is_noted(route: Operation):
    if not route.changes:
        return
    app = App("memory://")
    async with opened(app, heads={}, tokens=TOKENS) as web:
        spec_id = (
            await web.ask("POST", "/api/jobs", {"task": "pack", "id": "some-job"}, 201, headers=bearer("admin"))
        ).json()
        before = await app.store.events(None, 100)
        noted = len(web.server.audit.latest(500))
        lower = {"operator": "viewer", "admin": "operator"}[route.role]

        assert await status(web, route, bearer(lower)) == 403

        assert await app.store.events(None, 100) == before
        entry, *_ = latest = web.server.audit.latest(500)
        assert len(latest) == noted + 1
        assert (entry.action, entry.status, entry.facts["refused"]) == (route.name, 403, "role")
        assert spec_id["id"] == "some-job"


async def test_every_answer_carries_the_safe_headers():
    async with opened(App(), heads={}) as web:
        for path in ("/", "/css/frame.css", "/health", "/api/jobs", "/nowhere", "/openapi.json", "/metrics"):
            heads = (await web.ask("GET", path)).headers
            policy = heads["content-security-policy"]
            assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
            assert "unsafe" not in policy and "script-src 'self'" in policy
            assert heads["x-content-type-options"] == "nosniff"
            assert heads["x-frame-options"] == "DENY"
            assert heads["cross-origin-resource-policy"] == "same-origin"
            assert "access-control-allow-origin" not in heads
            assert heads["cache-control"] in ("no-store", "no-cache")


async def test_no_other_site_is_told_that_it_may():
    async with opened(App(), heads={}, tokens=TOKENS) as web:
        preflight = {"origin": "https://evil.example", "access-control-request-method": "POST"}
        response = await web.ask("OPTIONS", "/api/jobs", headers=preflight)
        assert response.status_code == 405
        assert not [name for name in response.headers if name.startswith("access-control")]


def test_the_pages_have_no_inline_script_or_style():
    from importlib import resources

    for file in (resources.files("millrace.web") / "static").iterdir():
        if file.name.endswith(".html"):
            text = file.read_text("utf-8")
            assert "<script>" not in text and "style=" not in text and " onclick" not in text
            assert "http://" not in text and "https://" not in text


@pytest.mark.parametrize(
    "tokens",
    [
        {"admin": "short"},
        {"boss": "x" * 32},
        {"admin": "with a space in it 123"},
        {"viewer": "x" * 32, "admin": "x" * 32},
    ],
    ids=["short", "no such role", "a space", "shared"],
)
def test_bad_tokens_are_refused_at_the_start(tokens: dict[str, str]):
    with pytest.raises(InvalidInput):
        application(App(), tokens=tokens)


async def test_a_role_may_have_several_tokens_and_the_log_tells_them_apart():
    tokens = {"operator": ["first-token-0123456789", "second-token-012345678"]}
    async with opened(App(), heads={}, tokens=tokens) as web:
        for token in tokens["operator"]:
            heads = {"authorization": f"Bearer {token}"}
            await web.ask("POST", "/api/jobs", {"task": "pack"}, 201, headers=heads)
        names = {entry.who for entry in web.server.audit.latest(10)}
        assert len(names) == 2
        assert not any(token in str(names) for token in tokens["operator"])
