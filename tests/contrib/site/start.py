"""Sets Django up for the site. Import this before the tasks of the site."""

import os

import django
from django.apps import apps

BACKEND = "millrace.contrib.django.MillraceBackend"
SETTINGS = "tests.contrib.site.settings"

if not apps.ready:
    os.environ["DJANGO_SETTINGS_MODULE"] = SETTINGS
    django.setup()
    del os.environ["DJANGO_SETTINGS_MODULE"]  # not for the processes of other tests
