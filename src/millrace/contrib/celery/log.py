"""`get_task_logger`, as in `celery.utils.log`: an ordinary logger. Each record of a task has the job's fields."""

from __future__ import annotations

import logging


def get_task_logger(name: str) -> logging.Logger:
    """Return the logger with this name."""
    return logging.getLogger(name)
