"""Integrations with web frameworks (`django/`, `fastapi.py`, `flask.py`), with Sentry, and with orchestrators
(`airflow/`, `dagster.py`); and Celery's API (`celery/`).

Each module imports the library that it is for, but `celery/` needs none. No other package of Millrace imports this one.
The orchestrators share `jobs.py`.
"""
