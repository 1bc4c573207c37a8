"""The integration with Sentry: each attempt has a scope of its own, and its events are tagged with the job.

The worker logs a dead job as an ERROR record with `exc_info`, and Sentry's logging integration, which is on by default,
turns that record into an event. What the record cannot carry is added here: tags, the name of the transaction, and what
the handler has left in its scope (breadcrumbs, tags, the user).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sentry_sdk
from sentry_sdk.integrations import Integration
from sentry_sdk.scope import add_global_event_processor

from millrace.app.app import App
from millrace.app.handler.context import Context
from millrace.app.host import CallNext

if TYPE_CHECKING:
    from sentry_sdk.types import Event, Hint

JOBS = "millrace.jobs"  # the logger of dead jobs
TAGS = ("job", "task", "queue", "attempt", "worker", "reason")
_SCOPE = "_millrace_sentry_scope"  # an attribute of an exception: the scope of the attempt that raised it


class MillraceIntegration(Integration):
    """Sentry's view of the jobs of an app: `sentry_sdk.init(integrations=[MillraceIntegration(app)])`.

    Each attempt of a job has a scope of its own, with the tags `job`, `task`, `queue` and `attempt`, and the name of
    the task as its transaction. The event of a dead job has these tags too, the tags `worker` and `reason`, and the
    breadcrumbs of its last attempt. Handlers with process=True run in another process, which has no such scope.
    """

    identifier = "millrace"

    def __init__(self, *apps: App) -> None:
        for app in apps:
            if _isolate not in app.layers:
                app.middleware(_isolate)

    @staticmethod
    def setup_once() -> None:
        """Add the event processor. Sentry calls this once per process."""
        add_global_event_processor(_describe)


async def _isolate(ctx: Context, call_next: CallNext) -> Any:
    """Run an attempt in a scope of its own. An exception keeps this scope until the worker logs it."""
    with sentry_sdk.isolation_scope() as scope:
        scope.clear_breadcrumbs()
        scope.set_transaction_name(ctx.task, source="task")
        scope.set_tags({"job": ctx.id, "task": ctx.task, "queue": ctx.queue, "attempt": ctx.attempt})
        try:
            return await call_next()
        except Exception as error:
            error.__dict__[_SCOPE] = scope
            raise


class _ScopeData(sentry_sdk.Scope):
    """The data of another scope. They are applied to an event without a second call of the event processors."""

    def run_event_processors(self, event: Event, hint: Hint) -> Event | None:
        return event

    def run_error_processors(self, event: Event, hint: Hint) -> Event | None:
        return event


def _describe(event: Event, hint: Hint) -> Event | None:
    """Add to the event of a dead job what Sentry shows of a job, and what its last attempt has left in its scope."""
    record = hint.get("log_record")
    if record is None or record.name != JOBS or sentry_sdk.get_client().get_integration(MillraceIntegration) is None:
        return event
    facts = {name: str(value) for name in TAGS if (value := getattr(record, name, None)) is not None}
    event["transaction"], event["transaction_info"] = facts["task"], {"source": "task"}
    raised = record.exc_info[1] if record.exc_info else None
    scope = getattr(raised, _SCOPE, None)
    if scope is not None:
        event["breadcrumbs"] = {"values": []}  # those so far are of the worker
        data = _ScopeData()
        data.update_from_scope(scope)
        data.apply_to_event(event, hint)
    elif raised is None:  # otherwise Sentry groups by the log message, which is the same for all tasks
        event["fingerprint"] = ["{{ default }}", facts["task"], facts.get("reason", "")]
    event["tags"] = {**event.get("tags", {}), **facts}
    return event
