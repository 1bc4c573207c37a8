"""Dagster's jobs for test_dagster.py. The handlers of the jobs of Millrace are in handlers.py."""

from typing import Any

import dagster as dg

from millrace.contrib.dagster import MillraceResource

RESOURCES = {"millrace": MillraceResource(url=dg.EnvVar("MILLRACE_URL"))}


@dg.op
def fails(context: dg.OpExecutionContext, millrace: MillraceResource) -> Any:
    return millrace.run(context, "double", {"number": -1}, options={"max_attempts": 1})


@dg.job(executor_def=dg.in_process_executor, resource_defs=RESOURCES)
def fails_job() -> None:
    fails()


@dg.op(retry_policy=dg.RetryPolicy(max_retries=1))
def flaky(context: dg.OpExecutionContext, millrace: MillraceResource) -> Any:
    payload = [{"name": "a", "fails": False}, {"name": "b", "fails": True}]
    return millrace.run(context, "fail_once", payload, options={"max_attempts": 1})


@dg.job(executor_def=dg.in_process_executor, resource_defs=RESOURCES)
def flaky_job() -> None:
    flaky()


@dg.op
def held(context: dg.OpExecutionContext, millrace: MillraceResource) -> Any:
    return millrace.run(context, "held", {}, options={"timeout": None})


@dg.job(executor_def=dg.in_process_executor, resource_defs=RESOURCES)
def held_job() -> None:
    held()


@dg.op
def twice(context: dg.OpExecutionContext, millrace: MillraceResource) -> Any:
    first = millrace.run(context, "double", {"number": 1})
    second = millrace.run(context, "double", {"number": 2}, name="second")
    context.log.info(f"results {first} and {second}")  # noqa: G004
    return millrace.run(context, "double", {"number": 3})


@dg.job(executor_def=dg.in_process_executor, resource_defs=RESOURCES)
def twice_job() -> None:
    twice()
