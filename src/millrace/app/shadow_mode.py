"""Shadow mode: this process runs jobs again to compare their results, and must not change any real store.

The environment variable marks the process and its child processes, so that handlers and libraries can ask. While it is
set, an app opens no store except in memory. That covers child processes and other apps that handlers use.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from millrace.app.local_events import LocalEventBus
from millrace.domain.errors import InvalidInput

if TYPE_CHECKING:
    from millrace.app.app import App
    from millrace.store.protocol import Store

VARIABLE = "MILLRACE_SHADOW"


def is_shadow() -> bool:
    """Return whether this process is in shadow mode."""
    return os.environ.get(VARIABLE) == "1"


@contextmanager
def shadow_mode() -> Iterator[None]:
    """Put this process into shadow mode until the end of the block."""
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = "1"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(VARIABLE, None)
        else:
            os.environ[VARIABLE] = before


@contextmanager
def sandboxed(app: App, store: Store) -> Iterator[None]:
    """Let the app use `store`, without its listeners and spans, until the end of the block."""
    before = app._connection, app.bus, app.tracing
    app.use(store)
    app.bus, app.tracing = LocalEventBus(), None
    try:
        yield
    finally:
        app._connection, app.bus, app.tracing = before


def refuse_real(store: Store) -> None:
    """Raise InvalidInput if this process is in shadow mode and the store is not in memory. Called when an app opens its
    store.
    """
    if is_shadow() and not store.url.startswith("memory:"):
        raise InvalidInput(
            f"this process runs a shadow replay ({VARIABLE}=1), so no app may open a real store. The handler uses an "
            "app other than that of its task, or runs with process=True. Check ctx.is_shadow before such a call"
        )
