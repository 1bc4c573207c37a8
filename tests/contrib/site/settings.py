"""The settings of the site. The tests replace the name of the database, and TASKS."""

import os
from importlib.util import find_spec

SECRET_KEY = "only-for-tests"
USE_TZ = True
ROOT_URLCONF = "tests.contrib.site.urls"
ALLOWED_HOSTS = ["*"]
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]  # quick
STATIC_URL = "static/"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("SITE_DATABASE", "unset.sqlite3"),
        "OPTIONS": {"transaction_mode": "IMMEDIATE"},
    }
}
MILLRACE_DASHBOARD_URL = "/jobs/"
TASKS = {"default": {"BACKEND": "millrace.contrib.django.MillraceBackend", "QUEUES": ["default", "queue_1"]}}
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    *([] if find_spec("django.tasks") else ["django_tasks"]),
    "millrace.contrib.django",
    "tests.contrib.site",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
