"""The operator: submits one job or many, and waits until they have finished."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow.sdk import BaseOperator, Context, conf

from millrace.app.app import App
from millrace.contrib import jobs
from millrace.contrib.airflow.hooks import MillraceHook
from millrace.contrib.airflow.triggers import JobsTrigger


class MillraceJobOperator(BaseOperator):
    """Submits jobs of the task `task_name`, waits until they have finished, and fails if any of them did not complete.

    `payload` is a dict of arguments for one job, or a list of dicts for one job each. `options` are the options of the
    jobs by name, for example {"queue": "reports", "delay": "10m"}.

    The id of a job is derived from the DAG, the run, the task and the map index, so a retry of the Airflow task waits
    for the jobs of the try before it. It enqueues only those again that are dead or cancelled. `job_id` sets another
    id; for a list of payloads, -0, -1, … are appended.

    The return value (XCom) is the result of the job; for a list of payloads, the list of results. With returns="ids",
    and if `wait` is False, it is the ids. `deferrable` waits in the triggerer, without a worker slot. `cancel_on_kill`
    cancels the jobs when the task is stopped.
    """

    template_fields = ("task_name", "payload", "options", "job_id")
    template_fields_renderers = {"payload": "json", "options": "json"}  # noqa: RUF012  # read by Airflow
    ui_color = "#d9e8f2"

    def __init__(
        self,
        *,
        task_name: str,
        payload: jobs.Payload | None = None,
        options: Mapping[str, Any] | None = None,
        job_id: str | None = None,
        wait: bool = True,
        returns: jobs.Returns = "results",
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        cancel_on_kill: bool = True,
        millrace_conn_id: str = MillraceHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.task_name = task_name
        self.payload = {} if payload is None else payload
        self.options = {} if options is None else options
        self.job_id = job_id
        self.wait = wait
        self.returns = returns
        self.deferrable = deferrable
        self.cancel_on_kill = cancel_on_kill
        self.millrace_conn_id = millrace_conn_id
        self._cancel_ids: Sequence[str] = ()

    def execute(self, context: Context) -> Any:
        app = self._app()
        ids = self._submit(app, context)
        if not self.wait:
            return self._shaped(ids)
        if self.deferrable:
            trigger = JobsTrigger(self.millrace_conn_id, ids, self._cancel_ids)
            self.defer(trigger=trigger, method_name="execute_complete", timeout=self.execution_timeout)
        app.sync.run(jobs.wait_until_finished(app, ids))
        return self._collected(app, ids)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        return self._collected(self._app(), event["ids"])

    def on_kill(self) -> None:
        if self._cancel_ids:
            app = self._app()
            app.sync.run(jobs.cancel(app, self._cancel_ids))

    def _app(self) -> App:
        return MillraceHook(self.millrace_conn_id).get_conn()

    def _submit(self, app: App, context: Context) -> list[str]:
        """Enqueue the jobs and return the ids to wait for. If another job holds the key of a job, wait for that one."""
        ti = context["ti"]
        origin = {"dag_id": ti.dag_id, "run_id": ti.run_id, "task_id": ti.task_id, "map_index": ti.map_index}
        headers = {f"airflow.{name}": str(value) for name, value in origin.items()}
        options = {**self.options, "headers": {**headers, **self.options.get("headers", {})}}
        job_id = self.job_id or f"airflow-{jobs.derived_id(*origin.values())}"
        specs = jobs.job_specs(app, self.task_name, self.payload, job_id, options)
        if self.cancel_on_kill and self.wait:
            self._cancel_ids = [spec.id for spec in specs]
        answers = app.sync.run(jobs.submit(app, specs))
        new = sum(answer.status == "queued" for answer in answers)
        self.log.info("Submitted %d jobs; %d of them existed already: %s", len(answers), len(answers) - new, job_id)
        if any(answer.payload_differs and answer.by == "id" for answer in answers):
            self.log.warning("Some of the jobs existed already with another payload. They were not changed.")
        return [answer.id for answer in answers]

    def _collected(self, app: App, ids: Sequence[str]) -> Any:
        return self._shaped(app.sync.run(jobs.collect(app, ids, self.returns)))

    def _shaped(self, values: Sequence[Any]) -> Any:
        return values[0] if isinstance(self.payload, Mapping) else values
