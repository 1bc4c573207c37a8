"""Sets Django up for the site. Import this before the tasks of the site."""

import os

import django
from django.apps import apps

BACKEND = "millrace.contrib.django.MillraceBackend"

if not apps.ready:
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.contrib.site.settings"
    django.setup()
