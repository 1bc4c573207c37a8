"""A driver of the object store that keeps objects in a bucket, on any S3 server with reliable conditional writes.

Begin with `driver.py`. `replies.py` interprets the errors of a server, and `clock.py` estimates the server's time.
`address.py` reads URLs. `admin.py`, `state.py` and `pages.py` set up a bucket, check it, and upload the dashboard.
"""

from millrace.store.object.s3.address import BucketAddress
from millrace.store.object.s3.driver import S3Blobs

__all__ = ["BucketAddress", "S3Blobs"]
