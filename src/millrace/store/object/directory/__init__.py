"""A driver of the object store that keeps objects in a directory on a local disk, for several processes on one machine.

Begin with `driver.py`. `committer.py` makes many changes at a time under the locks of `locks.py`, and `object_files.py`
makes one change. `file_format.py` defines the content of a file; old files must stay readable. `listing.py` lists keys,
`change_signal.py` wakes other processes, and `folder.py` creates and checks the directory itself.

Job records keep their versions (see `opening.py`). So a swap of a job record usually appends to its file, and does not
replace the file.
"""

from millrace.store.object.directory.driver import DirectoryBlobs

__all__ = ["DirectoryBlobs"]
