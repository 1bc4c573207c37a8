"""The HTTP API and the dashboard (extra `web`): `millrace serve`, or mounted in an ASGI app of yours."""

from __future__ import annotations

from millrace.domain.errors import MissingExtra

try:
    import prometheus_client as _prometheus
    import starlette as _starlette
except ModuleNotFoundError as error:
    if error.name not in ("prometheus_client", "starlette"):
        raise
    raise MissingExtra("the HTTP API and the dashboard", "web") from None

from millrace.runtime.redaction import Redaction
from millrace.web.application import application

del _prometheus, _starlette

__all__ = ["Redaction", "application"]
