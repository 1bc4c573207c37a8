"""Schedules and routes, with settings from a module."""

from datetime import timedelta

from millrace.contrib.celery import Celery

app = Celery("reporting", include=["tests.contrib.celery_modules.shared"])
app.config_from_object("tests.contrib.celery_modules.celeryconfig")


@app.task(name="reporting.nightly")
def nightly(year):
    return year


@app.task(name="reporting.ping")
def ping():
    return "pong"


@app.task(name="reporting.mail_summary")
def mail_summary(to):
    return to


@app.on_after_configure.connect
def set_up_periodic_tasks(sender, **kwargs):
    sender.add_periodic_task(timedelta(minutes=10), mail_summary.s("ada"), name="summary every 10 minutes")
    sender.add_periodic_task(60.0, mail_summary.s("grace"), expires=30)
