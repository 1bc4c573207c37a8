import os
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
INSTALLED_APPS = ["shop"]
CELERY_BROKER_URL = "sqla+sqlite:///jobs.db"
CELERY_RESULT_BACKEND = "db+sqlite:///jobs.db"
CELERY_TASK_ACKS_LATE = True
CELERY_TASK_TIME_LIMIT = 30
