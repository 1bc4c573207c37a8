"""`manage.py millrace`."""
