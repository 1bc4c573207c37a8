"""On whose behalf a task runs: the thread that blocks until it is done, where there is one.

Set by `app.sync`, which has a loop in the background do what a thread asks for; read by stores that must know whether a
caller would wait for itself.
"""

from __future__ import annotations

from contextvars import ContextVar

acting_for: ContextVar[int | None] = ContextVar("millrace_acting_for", default=None)
