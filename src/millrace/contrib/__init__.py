"""Integrations with orchestrators: Apache Airflow (`airflow/`) and Dagster (`dagster.py`).

Start at `jobs.py`, the part that needs no orchestrator. The other modules import the library that they are for, and no
other package of Millrace imports this one.
"""
