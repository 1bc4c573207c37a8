"""A context variable with the id of the thread that waits for the current asyncio task; None if no thread waits.

`app.sync` sets the variable when it runs a call on its background loop. Stores read it to detect a deadlock in which a
caller waits for itself.
"""

from __future__ import annotations

from contextvars import ContextVar

acting_for: ContextVar[int | None] = ContextVar("millrace_acting_for", default=None)
