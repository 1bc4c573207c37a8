"""The settings: TASKS names the backend, and the jobs are in the database of the site."""

import os
from importlib.util import find_spec
from pathlib import Path

SECRET_KEY = os.environ.get("SECRET_KEY", "only-for-development")
DEBUG = True
ALLOWED_HOSTS = ["127.0.0.1", "localhost"]
ROOT_URLCONF = "shop.urls"
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("DATABASE", Path(__file__).parent.parent / "db.sqlite3"),
        "OPTIONS": {"transaction_mode": "IMMEDIATE"},
    }
}
INSTALLED_APPS = ["millrace.contrib.django", "shop"]
if not find_spec("django.tasks"):  # before Django 6
    INSTALLED_APPS.append("django_tasks")
TASKS = {"default": {"BACKEND": "millrace.contrib.django.MillraceBackend"}}
