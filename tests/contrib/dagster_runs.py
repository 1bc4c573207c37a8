"""Runs jobs in Dagster's own environment: python dagster_runs.py < calls > answers. Logs go to stderr."""

import json
import os
import sys
from importlib import import_module
from typing import Any

answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)

import dagster as dg  # noqa: E402


def run_example() -> dict[str, Any]:
    example = import_module("assets")
    done = dg.materialize([example.resized, example.album], resources=example.definitions.resources)
    return {"resized": done.output_for_node("resized"), "album": done.output_for_node("album")}


def run(name: str, parent: str | None = None) -> dict[str, Any]:
    """Run the job of an op. With `parent`, execute the run with this id again."""
    job = dg.reconstructable(getattr(import_module("dagster_jobs"), f"{name}_job"))
    again = dg.ReexecutionOptions(parent_run_id=parent) if parent else None
    with dg.DagsterInstance.get() as instance, dg.execute_job(job, instance, reexecution_options=again) as done:
        errors = [event.event_specific_data.error.to_string() for event in done.all_events if event.is_step_failure]
        value = done.output_for_node(name) if done.success else None
        return {"id": done.run_id, "success": done.success, "value": value, "errors": errors}


def latest_run() -> dict[str, str]:
    with dg.DagsterInstance.get() as instance:
        return {"id": instance.get_runs(limit=1)[0].run_id}


CALLS = {call.__name__: call for call in (run_example, run, latest_run)}
for line in sys.stdin:
    call, arguments = json.loads(line)
    print(json.dumps(CALLS[call](**arguments)), file=answers, flush=True)
