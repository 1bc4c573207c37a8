"""A shop on Django: an order and the job that sends its receipt commit together.

Run it with two terminals:

    python manage.py migrate && python manage.py runserver
    python manage.py millrace worker

Then order something: curl -d product=tea http://127.0.0.1:8000/orders/
"""

import os
import sys

from django.core.management import execute_from_command_line

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
    execute_from_command_line(sys.argv)
