"""Settings in a module of their own."""

import os

from millrace.contrib.celery.schedules import crontab

broker_url = "memory://"
result_backend = "rpc://"
task_default_queue = "reports"
task_routes = {
    "reporting.nightly": {"queue": "slow"},
    "reporting.mail_*": {"queue": "mail"},
}
timezone = "Europe/Berlin"
result_expires = 0
beat_schedule = {
    "nightly report": {
        "task": "reporting.nightly",
        "schedule": crontab(hour=3, minute=30, day_of_week="mon-fri"),
        "args": (2026,),
        "options": {"priority": 3},
    },
    "ping": {"task": "reporting.ping", "schedule": 30.0},
}
HERE = os.path.dirname(__file__)
