"""The sensors: wait for jobs that other programs enqueue, or until a queue is empty."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from airflow.sdk import BaseSensorOperator, Context, conf

from millrace.contrib import jobs
from millrace.contrib.airflow.hooks import MillraceHook
from millrace.contrib.airflow.triggers import JobsTrigger


class MillraceJobSensor(BaseSensorOperator):
    """Waits until the jobs `job_ids` have completed, and fails if one of them is dead or cancelled.

    A job that does not exist yet counts as unfinished. To wait for a flow, name its last job. `deferrable` waits in the
    triggerer, without a worker slot.
    """

    template_fields = ("job_ids",)

    def __init__(
        self,
        *,
        job_ids: str | Sequence[str],
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        millrace_conn_id: str = MillraceHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.job_ids = job_ids
        self.deferrable = deferrable
        self.millrace_conn_id = millrace_conn_id

    def execute(self, context: Context) -> Any:
        if not self.deferrable:
            return super().execute(context)
        self.defer(
            trigger=JobsTrigger(self.millrace_conn_id, self._ids(), allow_missing=True),
            method_name="execute_complete",
            timeout=timedelta(seconds=self.timeout),
        )

    def poke(self, context: Context) -> bool:
        app = MillraceHook(self.millrace_conn_id).get_conn()
        if not app.sync.run(jobs.have_finished(app, self._ids())):
            return False
        self.execute_complete(context, {"ids": self._ids()})
        return True

    def execute_complete(self, context: Context, event: dict[str, Any]) -> None:
        """Raise an error unless the jobs have completed."""
        app = MillraceHook(self.millrace_conn_id).get_conn()
        app.sync.run(jobs.collect(app, event["ids"], "ids"))

    def _ids(self) -> list[str]:
        return [self.job_ids] if isinstance(self.job_ids, str) else list(self.job_ids)


class MillraceQueueSensor(BaseSensorOperator):
    """Waits until no job of the queue waits or runs. Scheduled, retrying and blocked jobs count as waiting.

    With mode="reschedule", it needs no worker slot between two looks.
    """

    template_fields = ("queue_name",)

    def __init__(
        self, *, queue_name: str, millrace_conn_id: str = MillraceHook.default_conn_name, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.queue_name = queue_name
        self.millrace_conn_id = millrace_conn_id

    def poke(self, context: Context) -> bool:
        counts = MillraceHook(self.millrace_conn_id).get_conn().sync.queue(self.queue_name).counts()
        self.log.info("Queue %s: %d jobs wait, %d run", self.queue_name, counts.waiting, counts.running)
        return counts.waiting == counts.running == 0
