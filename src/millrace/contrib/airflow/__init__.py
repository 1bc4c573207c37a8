"""The provider for Apache Airflow 3: a hook, an operator, sensors and their trigger.

The operator, in `operators.py`, is the place to start. This module must not import Airflow, because Airflow imports it
to find the provider.
"""

from __future__ import annotations

from typing import Any


def get_provider_info() -> dict[str, Any]:
    """Return the description of the provider. The entry point in pyproject.toml names this function."""
    return {
        "package-name": "millrace",
        "name": "Millrace",
        "description": "Submit jobs to a Millrace queue, and wait for them.",
        "connection-types": [
            {"connection-type": "millrace", "hook-class-name": "millrace.contrib.airflow.hooks.MillraceHook"}
        ],
    }
