"""The files of the dashboard. They are read from `static/` and kept in memory, because they are few and small."""

from __future__ import annotations

import hashlib
import mimetypes
from importlib import resources
from importlib.resources.abc import Traversable

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from millrace.web.problem import Problem

INDEX = "index.html"


class Pages:
    def __init__(self) -> None:
        self._files: dict[str, tuple[bytes, str, str]] = {}
        self._gather(resources.files("millrace.web") / "static", "")

    def _gather(self, folder: Traversable, prefix: str) -> None:
        for entry in folder.iterdir():
            name = f"{prefix}{entry.name}"
            if entry.is_dir():
                self._gather(entry, f"{name}/")
            else:
                data = entry.read_bytes()
                kind = mimetypes.guess_type(entry.name)[0] or "application/octet-stream"
                self._files[name] = (data, kind, f'"{hashlib.sha256(data).hexdigest()[:20]}"')

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._response(scope)(scope, receive, send)

    def _response(self, scope: Scope) -> Response:
        found = self._files.get(scope["path_params"]["file"] or INDEX)
        if found is None:
            raise Problem(404, "not_found", "there is nothing at this address; /openapi.json lists what there is")
        if scope["method"] not in ("GET", "HEAD"):
            raise Problem(405, "method", "only GET, HEAD can be used here", headers={"allow": "GET, HEAD"})
        data, kind, etag = found
        headers = {"etag": etag, "cache-control": "no-cache"}
        if Headers(scope=scope).get("if-none-match") == etag:
            return Response(status_code=304, headers=headers)
        return Response(data, media_type=kind, headers=headers)
