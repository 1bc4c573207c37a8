"""`millrace init`: creates a store and, on request, an example app and the dashboard in a bucket.

There is one module per kind of store (`bucket.py`, `folder.py`). `page.py` uploads the dashboard from `web/static`.
"""
