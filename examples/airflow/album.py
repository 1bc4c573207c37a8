"""An Airflow DAG that resizes the pictures of a day on Millrace workers, and makes an album of them."""

from datetime import UTC, datetime

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import dag, task

from millrace.contrib.airflow.operators import MillraceJobOperator
from millrace.contrib.airflow.sensors import MillraceQueueSensor


@dag(schedule="@daily", start_date=datetime(2026, 1, 1, tzinfo=UTC), catchup=False)
def album():
    @task
    def pictures(ds: str) -> list[dict]:
        return [{"picture": f"{ds}/{number}.jpg", "width": 200} for number in range(3)]

    resized = MillraceJobOperator(
        task_id="resize",
        task_name="resize",
        payload=pictures(),  # a list: one job for each item
        options={"max_attempts": 3, "timeout": "1m"},
        deferrable=True,  # wait in the triggerer, without a worker slot
    )
    made = MillraceJobOperator(
        task_id="album",
        task_name="album",
        payload={"day": "{{ ds }}", "pictures": resized.output},
        options={"priority": 5},
    )
    drained = MillraceQueueSensor(task_id="drained", queue_name="default", mode="reschedule", poke_interval=5)
    queues = BashOperator(
        task_id="queues",
        bash_command="millrace --json queues",
        env={"MILLRACE_URL": "{{ conn.millrace_default.password }}"},
        append_env=True,
    )
    made >> drained >> queues


album()
