"""A bucket as a store of blobs: any server that speaks S3 and keeps its conditional writes honest."""

from millrace.store.object.s3.address import Address
from millrace.store.object.s3.driver import S3Blobs

__all__ = ["Address", "S3Blobs"]
