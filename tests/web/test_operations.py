"""The table of routes: every action over HTTP has a command that does the same."""

from __future__ import annotations

import re

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from millrace import App
from millrace.cli.root import PLACES, command
from millrace.web import application
from millrace.web.openapi import document
from millrace.web.operation import Operation
from millrace.web.routes import OPERATIONS
from tests.web.stage import opened

ONLY_HERE = {"getMetrics", "getOpenapi", "whoAmI", "getRedaction", "listAudit"}


def options(name: str) -> set[str]:
    return {option for parameter in command(name).params for option in (*parameter.opts, *parameter.secondary_opts)}


@pytest.mark.parametrize("route", OPERATIONS, ids=lambda route: route.name)
def test_every_route_has_its_command_with_the_options_it_names(route: Operation):
    if route.name in ONLY_HERE:
        assert route.cli is None and not route.changes
        return
    assert route.cli is not None
    name, *words = route.cli.split()
    assert name in PLACES
    named = {word for word in words if word.startswith("--")}
    assert named <= options(name)
    places = [word for word in words if not word.startswith("--")]
    arguments = [parameter for parameter in command(name).params if parameter.param_type_name == "argument"]
    assert len(places) <= len(arguments)


def test_names_and_places_are_unique():
    assert len({route.name for route in OPERATIONS}) == len(OPERATIONS)
    assert len({(route.method, route.path) for route in OPERATIONS}) == len(OPERATIONS)


def test_what_changes_something_is_never_a_get_and_never_for_viewers():
    for route in OPERATIONS:
        verb = re.match(r"[a-z]+", route.name)
        assert verb is not None
        reads = verb[0] in ("get", "list", "explain", "diff", "stream", "who")
        assert reads == (route.method == "GET"), route.name
        assert reads or route.role in ("operator", "admin"), route.name


def test_who_may_do_what_is_no_accident():
    by_role = {role: {route.name for route in OPERATIONS if route.role == role} for role in ("open", "admin")}

    assert by_role["open"] == {"getHealth", "getOpenapi"}
    assert by_role["admin"] == {"changeQueue", "deleteJob", "obliterateQueue", "removeSchedule", "listAudit"}


async def test_the_document_says_where_the_server_is_mounted():
    served = Starlette(routes=[Mount("/jobs", application(App("memory://")))])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(served), base_url="http://127.0.0.1") as client:
        assert (await client.get("/jobs/openapi.json")).json()["servers"] == [{"url": "/jobs"}]
    async with opened(App("memory://")) as web:
        assert (await web.get("/openapi.json"))["servers"] == [{"url": "/"}]


def test_the_document_has_every_route_and_every_link_leads_somewhere():
    paths = document(OPERATIONS)["paths"]
    operations = {one["operationId"]: one for methods in paths.values() for one in methods.values()}

    assert set(operations) == {route.name for route in OPERATIONS}
    links = [
        link
        for one in operations.values()
        for answer in one["responses"].values()
        for link in answer.get("links", {}).values()
    ]
    assert len(links) > 20
    assert {link["operationId"] for link in links} <= set(operations)
    for link in links:
        parameters = {one["name"] for one in operations[link["operationId"]]["parameters"]}
        assert set(link["parameters"]) <= parameters
