"""A directory on a local disk as a store of blobs: several processes, one machine."""

from millrace.store.object.directory.driver import DirectoryBlobs

__all__ = ["DirectoryBlobs"]
