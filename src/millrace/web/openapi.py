"""The OpenAPI document, made from the table of routes and the types that they take and give."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from millrace import __version__
from millrace.web import given
from millrace.web.route import Link, Route

Plain = dict[str, Any]
PROBLEM = "application/problem+json"
_REF = "#/components/schemas/{name}"
_PATH_SCHEMAS: dict[str, Plain] = {
    "id": {"type": "string", "minLength": 1, "maxLength": 200, "pattern": r"^[^\u0000]+$"},
    "name": {"type": "string", "pattern": r"^(~\.{1,2}|[A-Za-z0-9._-]{1,128})$"},
}
_TITLES = {
    400: "A value that can never be right",
    401: "No token, or one that is not known",
    403: "The role does not suffice, or the request comes from another site",
    404: "There is none of that name",
    409: "It does not fit what is there",
    410: "It was there, and is no longer kept",
    413: "The body is too large",
    415: "The body is not JSON",
    421: "The server does not answer to this name",
    422: "The payload does not fit the task",
    429: "The queue is full",
    503: "The store does not answer",
}


def document(routes: Sequence[Route]) -> Plain:
    types = list(dict.fromkeys(_types(routes)))
    schemas, components = msgspec.json.schema_components(types, ref_template=_REF)
    known = dict(zip(types, schemas, strict=True))
    paths: dict[str, Plain] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, known, components)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Millrace",
            "version": __version__,
            "description": "A job queue for Python. Instants are ISO 8601 in UTC, durations seconds. "
            "Every refusal is a problem (RFC 9457) that says what happened and what to do next.",
        },
        "servers": [{"url": "/"}],
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "A viewer's, operator's or admin's token; where none is set, this machine is served",
                }
            },
        },
    }


def _types(routes: Sequence[Route]) -> Iterable[Any]:
    yield given.Problem
    for route in routes:
        yield from (kind for kind in (route.query, route.body) if kind is not None)
        yield from (kind for kind in route.answers.values() if kind not in (str, dict[str, object]))


def _operation(route: Route, known: dict[Any, Plain], components: Plain) -> Plain:
    operation: Plain = {
        "operationId": route.name,
        "summary": route.summary,
        "description": f"Role: {route.role}." + (f" Command: millrace {route.cli}" if route.cli else ""),
        "tags": [route.tag],
        "x-role": route.role,
        "parameters": [*_path_parameters(route), *_query_parameters(route, components)],
        "responses": _responses(route, known),
    }
    if route.role == "open":
        operation["security"] = []
    if route.body is not None:
        content = {"application/json": {"schema": known[route.body]}}
        operation["requestBody"] = {"required": not route.body_optional, "content": content}
    return operation


def _path_parameters(route: Route) -> Iterable[Plain]:
    for name in re.findall(r"{(\w+)}", route.path):
        yield {"name": name, "in": "path", "required": True, "schema": _PATH_SCHEMAS[name]}


def _query_parameters(route: Route, components: Plain) -> Iterable[Plain]:
    if route.query is None:
        return
    schema = components[route.query.__name__]
    for name, inner in schema["properties"].items():
        shown = _without_null(inner)
        described = {"description": shown.pop("description")} if "description" in shown else {}
        yield {"name": name, "in": "query", "required": False, "schema": shown, **described}


def _without_null(schema: Plain) -> Plain:
    """A parameter is left out, not null; and its default is for the server to know."""
    schema = {name: value for name, value in schema.items() if name != "default"}
    choices = schema.pop("anyOf", None)
    if choices is not None:
        left = [choice for choice in choices if choice != {"type": "null"}]
        schema |= left[0] if len(left) == 1 else {"anyOf": left}
    if "enum" in schema:
        schema["enum"] = [value for value in schema["enum"] if value is not None]
    return schema


def _responses(route: Route, known: dict[Any, Plain]) -> Plain:
    found: Plain = {}
    for status, kind in route.answers.items():
        schema: Plain = {"type": "string"} if kind is str else known.get(kind, {"type": "object"})
        found[str(status)] = {
            "description": _TITLES.get(status, "Done"),
            "content": {route.media: {"schema": schema}},
        }
        if route.links and status < 300:
            found[str(status)]["links"] = {link.name: _link(link) for link in route.links}
    for status in sorted({*_refusals(route), *route.refusals}):
        found.setdefault(
            str(status),
            {"description": _TITLES[status], "content": {PROBLEM: {"schema": known[given.Problem]}}},
        )
    return found


def _refusals(route: Route) -> set[int]:
    """What any route of this kind may answer."""
    found = {421, 503}
    if route.role != "open":
        found |= {401, 403}
    if route.query is not None or route.body is not None or "{" in route.path or route.role != "open":
        found.add(400)
    if route.body is not None:
        found |= {413, 415}
    return found


def _link(link: Link) -> Plain:
    return {"operationId": link.operation, "parameters": dict(link.parameters)}
