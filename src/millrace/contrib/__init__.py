"""Integrations with web frameworks (`django/`, `fastapi.py`, `flask.py`), with Sentry, and with orchestrators
(`airflow/`, `dagster.py`).

Each module imports the library that it is for, and no other package of Millrace imports this one. The orchestrators
share `jobs.py`.
"""
