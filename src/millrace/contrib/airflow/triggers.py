"""The trigger: waits for jobs on the triggerer's event loop, for operators and sensors that are deferred."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from millrace.contrib import jobs
from millrace.contrib.airflow.hooks import MillraceHook


class JobsTrigger(BaseTrigger):
    """Fires when all jobs `ids` have finished, with any outcome. The payload of its event is {"ids": ids}.

    When a user stops the deferred task, the jobs `cancel_ids` are cancelled. With `allow_missing`, it also waits for
    jobs that do not exist yet.
    """

    def __init__(
        self,
        millrace_conn_id: str,
        ids: Sequence[str],
        cancel_ids: Sequence[str] = (),
        allow_missing: bool = False,
    ) -> None:
        super().__init__()
        self.millrace_conn_id = millrace_conn_id
        self.ids = list(ids)
        self.cancel_ids = list(cancel_ids)
        self.allow_missing = allow_missing

    def serialize(self) -> tuple[str, dict[str, Any]]:
        names = ("millrace_conn_id", "ids", "cancel_ids", "allow_missing")
        return "millrace.contrib.airflow.triggers.JobsTrigger", {name: getattr(self, name) for name in names}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        app = await MillraceHook(self.millrace_conn_id).get_async_conn()
        await jobs.wait_until_finished(app, self.ids, allow_missing=self.allow_missing)
        yield TriggerEvent({"ids": self.ids})

    async def on_kill(self) -> None:
        if self.cancel_ids:
            await jobs.cancel(await MillraceHook(self.millrace_conn_id).get_async_conn(), self.cancel_ids)
