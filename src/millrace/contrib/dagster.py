"""The resource for Dagster: assets and ops submit jobs with it, and wait until they have finished."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from dagster import AssetExecutionContext, ConfigurableResource, DagsterExecutionInterruptedError, OpExecutionContext

from millrace.app.app import App
from millrace.contrib import jobs
from millrace.domain.errors import InvalidInput
from millrace.domain.job import Spec

StepContext: TypeAlias = AssetExecutionContext | OpExecutionContext


class MillraceResource(ConfigurableResource):
    """A store of Millrace: `MillraceResource(url=EnvVar("MILLRACE_URL"))`.

    Read the URL from an environment variable if it has a password: Dagster shows the values of a configuration.
    """

    url: str

    @property
    def app(self) -> App:
        """The app of the store. Use `app.sync`: `millrace.app.sync.jobs.get(…)`."""
        return jobs.app_at(self.url)

    def run(
        self,
        context: StepContext,
        task: str,
        payload: jobs.Payload,
        *,
        options: Mapping[str, Any] | None = None,
        name: str | None = None,
    ) -> Any:
        """Submit jobs, wait until they have finished, and return the result; for a list of payloads, all results.

        Takes the arguments of `submit`. Raises the error of the job if it is dead or cancelled; for a list,
        JobsNotCompleted. If the run is terminated, the jobs are cancelled.
        """
        specs = self._specs(context, task, payload, options, name)
        try:
            ids = self._submit(context, specs)
            self.app.sync.run(jobs.wait_until_finished(self.app, ids))
        except (DagsterExecutionInterruptedError, KeyboardInterrupt):
            self.app.sync.run(jobs.cancel(self.app, [spec.id for spec in specs]))
            raise
        values = self.app.sync.run(jobs.collect(self.app, ids))
        return values[0] if isinstance(payload, Mapping) else values

    def submit(
        self,
        context: StepContext,
        task: str,
        payload: jobs.Payload,
        *,
        options: Mapping[str, Any] | None = None,
        name: str | None = None,
    ) -> list[str]:
        """Submit jobs of the task `task`, and return their ids.

        `payload` is a dict of arguments for one job, or a list of dicts for one job each. `options` are the options of
        the jobs by name. The ids are derived from the run, the step, and `name`, which is the name of the task by
        default. So a retry of the step, and a run that executes this run again, gets the same jobs, and enqueues only
        those again that are dead or cancelled. A step that submits jobs of one task twice needs two names.
        """
        return self._submit(context, self._specs(context, task, payload, options, name))

    def _specs(
        self,
        context: StepContext,
        task: str,
        payload: jobs.Payload,
        options: Mapping[str, Any] | None,
        name: str | None,
    ) -> list[Spec]:
        step = context.get_step_execution_context().step.key
        origin = {"run_id": context.run.root_run_id or context.run.run_id, "step": step}
        headers = {f"dagster.{key}": value for key, value in origin.items()}
        given = dict(options or {})
        given["headers"] = {**headers, **given.get("headers", {})}
        job_id = f"dagster-{jobs.derived_id(*origin.values(), task if name is None else name)}"
        return jobs.job_specs(self.app, task, payload, job_id, given)

    def _submit(self, context: StepContext, specs: Sequence[Spec]) -> list[str]:
        answers = self.app.sync.run(jobs.submit(self.app, specs))
        for answer in answers:
            if answer.payload_differs and answer.by == "id":
                raise InvalidInput(
                    f"job {answer.id!r} of this step exists already, with another payload. If the step submits jobs of "
                    "one task more than once, give each call another `name`. A retry must pass the same payload."
                )
        context.log.info("Submitted %d jobs", len(answers))
        return [answer.id for answer in answers]
