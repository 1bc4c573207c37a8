"""Runs DAGs in Airflow's own environment: python airflow_runs.py < requests > answers.

A request is a line of JSON with the name of a function of this file and its arguments; the answer is what it returns.
Logs go to stderr.
"""

import asyncio
import json
import os
import sys
from datetime import datetime

answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # Airflow logs to stdout

from airflow.models.dagbag import DagBag  # noqa: E402
from airflow.models.taskinstance import TaskInstance  # noqa: E402
from airflow.models.xcom import XComModel  # noqa: E402
from airflow.sdk import BaseHook  # noqa: E402
from airflow.utils.session import create_session  # noqa: E402
from sqlalchemy import select  # noqa: E402

from millrace.contrib.airflow.triggers import JobsTrigger  # noqa: E402


def run(dag_id: str, date: str) -> dict[str, object]:
    at = datetime.fromisoformat(date)
    bag = DagBag(os.environ["AIRFLOW__CORE__DAGS_FOLDER"])
    assert not bag.import_errors, bag.import_errors
    done = bag.dags[dag_id].test(run_after=at, logical_date=at)
    with create_session() as session:
        tasks = session.scalars(
            select(TaskInstance).where(TaskInstance.run_id == done.run_id, TaskInstance.dag_id == dag_id)
        )
        found = [
            {"task": ti.task_id, "map_index": ti.map_index, "state": str(ti.state), "tries": ti.try_number}
            for ti in tasks
        ]
        xcoms = session.scalars(XComModel.get_many(run_id=done.run_id, dag_ids=dag_id, key="return_value"))
        values = {(row.task_id, row.map_index): XComModel.deserialize_value(row) for row in xcoms}
    for each in found:
        each["value"] = values.get((each["task"], each["map_index"]))
    return {"state": str(done.state), "tasks": found}


def test_connection() -> list[object]:
    """Find the hook by the type of the connection, as the button in the web interface does."""
    return list(BaseHook.get_hook("millrace_default").test_connection())


def kill_trigger(ids: list[str]) -> str:
    """Do what the triggerer does when a user stops a deferred task."""
    path, arguments = JobsTrigger("millrace_default", ids, cancel_ids=ids).serialize()
    assert path == f"{JobsTrigger.__module__}.{JobsTrigger.__qualname__}"
    asyncio.run(JobsTrigger(**arguments).on_kill())
    return "killed"


CALLS = {call.__name__: call for call in (run, test_connection, kill_trigger)}
for line in sys.stdin:
    name, arguments = json.loads(line)
    print(json.dumps(CALLS[name](**arguments)), file=answers, flush=True)
