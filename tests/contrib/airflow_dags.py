"""DAGs for test_airflow.py. Airflow parses a copy of this file; the handlers of the jobs are in handlers.py."""

import os
from datetime import timedelta
from pathlib import Path

from airflow.sdk import DAG

from millrace.contrib.airflow.operators import MillraceJobOperator
from millrace.contrib.airflow.sensors import MillraceJobSensor

AT_ONCE = {"retry_delay": timedelta(0)}  # of a retry


def open_gate(context) -> None:
    """Let the jobs of the task `held` end."""
    Path(os.environ["GATE"]).touch()


with DAG("fails"):
    MillraceJobOperator(task_id="submit", task_name="double", payload={"number": -1}, options={"max_attempts": 1})

with DAG("flaky", default_args=AT_ONCE):
    MillraceJobOperator(
        task_id="submit",
        task_name="fail_once",
        payload=[{"name": "a", "fails": False}, {"name": "b", "fails": True}],
        options={"max_attempts": 1},
        retries=1,
    )

with DAG("times_out", default_args=AT_ONCE):
    MillraceJobOperator(
        task_id="submit",
        task_name="held",
        options={"timeout": None},
        cancel_on_kill=False,
        execution_timeout=timedelta(seconds=1),
        retries=100,
        on_retry_callback=open_gate,
    )

with DAG("held"):
    MillraceJobOperator(task_id="submit", task_name="held", options={"timeout": None})

with DAG("held_deferred"):
    MillraceJobOperator(task_id="submit", task_name="held", options={"timeout": None}, deferrable=True)

with DAG("mapped"):
    MillraceJobOperator.partial(task_id="submit", task_name="double", returns="ids").expand(
        payload=[{"number": 1}, {"number": 2}]
    )

with DAG("no_wait"):
    MillraceJobOperator(task_id="submit", task_name="nobody_runs_this", payload=[{}, {}], wait=False, job_id="mine")

with DAG("sensors"):
    MillraceJobSensor(task_id="poke", job_ids=["elsewhere-0", "elsewhere-1"], poke_interval=0.1)
    MillraceJobSensor(task_id="deferred", job_ids="elsewhere-0", deferrable=True)
    MillraceJobSensor(task_id="dead", job_ids="elsewhere-2", poke_interval=0.1)
    MillraceJobSensor(task_id="dead_deferred", job_ids="elsewhere-2", deferrable=True)
