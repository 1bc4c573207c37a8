"""Builds the OpenAPI document from the operations and the types of their requests and responses."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from millrace import __version__
from millrace.web import responses
from millrace.web.operation import Link, Operation

Plain = dict[str, Any]
PROBLEM = "application/problem+json"
_REF = "#/components/schemas/{name}"
_PATH_SCHEMAS: dict[str, Plain] = {
    "id": {"type": "string", "minLength": 1, "maxLength": 200, "pattern": r"^[^\u0000]+$"},
    "name": {"type": "string", "pattern": r"^(~\.{1,2}|[A-Za-z0-9._-]{1,128})$"},
}
_TITLES = {
    400: "An invalid value",
    401: "No token, or an unknown one",
    403: "The role does not suffice, or the request comes from another site",
    404: "Not found",
    409: "A conflict with the current state",
    410: "It existed, and is no longer kept",
    413: "The body is too large",
    415: "The body is not JSON",
    421: "The server does not answer to this name",
    422: "The payload does not fit the task",
    429: "The queue is full",
    503: "The store does not answer",
}


def document(operations: Sequence[Operation]) -> Plain:
    types = list(dict.fromkeys(_types(operations)))
    schemas, components = msgspec.json.schema_components(types, ref_template=_REF)
    known = dict(zip(types, schemas, strict=True))
    paths: dict[str, Plain] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _described(operation, known, components)
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


def _types(operations: Sequence[Operation]) -> Iterable[Any]:
    yield responses.ProblemDetails
    for operation in operations:
        yield from (kind for kind in (operation.query, operation.body) if kind is not None)
        yield from (kind for kind in operation.responses.values() if kind not in (str, dict[str, object]))


def _described(operation: Operation, known: dict[Any, Plain], components: Plain) -> Plain:
    plain: Plain = {
        "operationId": operation.name,
        "summary": operation.summary,
        "description": f"Role: {operation.role}." + (f" Command: millrace {operation.cli}" if operation.cli else ""),
        "tags": [operation.tag],
        "x-role": operation.role,
        "parameters": [*_path_parameters(operation), *_query_parameters(operation, components)],
        "responses": _responses(operation, known),
    }
    if operation.role == "open":
        plain["security"] = []
    if operation.body is not None:
        content = {"application/json": {"schema": known[operation.body]}}
        plain["requestBody"] = {"required": not operation.body_optional, "content": content}
    return plain


def _path_parameters(operation: Operation) -> Iterable[Plain]:
    for name in re.findall(r"{(\w+)}", operation.path):
        yield {"name": name, "in": "path", "required": True, "schema": _PATH_SCHEMAS[name]}


def _query_parameters(operation: Operation, components: Plain) -> Iterable[Plain]:
    if operation.query is None:
        return
    schema = components[operation.query.__name__]
    for name, inner in schema["properties"].items():
        shown = _without_null(inner)
        described = {"description": shown.pop("description")} if "description" in shown else {}
        yield {"name": name, "in": "query", "required": False, "schema": shown, **described}


def _without_null(schema: Plain) -> Plain:
    """Return the schema of a query parameter without null and without its default. A client omits a parameter instead
    of sending null.
    """
    schema = {name: value for name, value in schema.items() if name != "default"}
    choices = schema.pop("anyOf", None)
    if choices is not None:
        left = [choice for choice in choices if choice != {"type": "null"}]
        schema = {**(left[0] if len(left) == 1 else {"anyOf": left}), **schema}
    if "enum" in schema:
        schema["enum"] = [value for value in schema["enum"] if value is not None]
    return schema


def _responses(operation: Operation, known: dict[Any, Plain]) -> Plain:
    found: Plain = {}
    for status, kind in operation.responses.items():
        schema: Plain = {"type": "string"} if kind is str else known.get(kind, {"type": "object"})
        found[str(status)] = {
            "description": _TITLES.get(status, "Done"),
            "content": {operation.media: {"schema": schema}},
        }
        if operation.links and status < 300:
            found[str(status)]["links"] = {link.name: _link(link) for link in operation.links}
    for status in sorted({*_problems(operation), *operation.problems}):
        found.setdefault(
            str(status),
            {"description": _TITLES[status], "content": {PROBLEM: {"schema": known[responses.ProblemDetails]}}},
        )
    return found


def _problems(operation: Operation) -> set[int]:
    """Return the error statuses that follow from the operation's role, query, body and path."""
    found = {421, 503}
    if operation.role != "open":
        found |= {401, 403}
    if operation.query is not None or operation.body is not None or "{" in operation.path or operation.role != "open":
        found.add(400)
    if operation.body is not None:
        found |= {413, 415}
    return found


def _link(link: Link) -> Plain:
    return {"operationId": link.operation, "parameters": dict(link.parameters)}
