"""Integrations with Apache Airflow (`airflow/`) and Dagster (`dagster.py`), and Celery's API (`celery/`).

Start at `jobs.py`, the part that needs no orchestrator. The modules for orchestrators import the library that they are
for; `celery/` does not. No other package of Millrace imports this one.
"""
