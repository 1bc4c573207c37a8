"""The HTTP API and the dashboard (extra `web`). `millrace serve` runs them; they can also be mounted in another ASGI
app.

A request passes `middleware.py`, `guard.py` and `operation.py`, which calls a handler in `routes/`. The types of
responses are in `views/` and `responses.py`. The dashboard is in `static/`; start reading at `drivers/choose.js`.
"""

from __future__ import annotations

from millrace.domain.errors import MissingExtra

try:
    import prometheus_client as _prometheus
    import starlette as _starlette
except ModuleNotFoundError as error:
    if error.name not in ("prometheus_client", "starlette"):
        raise
    raise MissingExtra("the HTTP API and the dashboard", "web") from None

from millrace.app.telemetry.redaction import Redaction
from millrace.web.application import application

del _prometheus, _starlette

__all__ = ["Redaction", "application"]
