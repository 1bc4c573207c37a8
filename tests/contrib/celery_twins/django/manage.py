"""The shop of examples/django with Celery: the task is sent after the order has committed.

Run it: python manage.py runserver, and a worker: millrace worker --app shop.celery:app
"""

import os
import sys

from django.core.management import execute_from_command_line

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
    execute_from_command_line(sys.argv)
