"""What kind of file system a path lies on: stores that lock files must not be on one that is shared by machines."""

from __future__ import annotations

from pathlib import Path

NETWORK_FILE_SYSTEMS = frozenset(
    {"9p", "afs", "beegfs", "ceph", "cifs", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "smb3"}
    | {"smbfs", "fuse.glusterfs", "fuse.s3fs", "fuse.sshfs", "fuse.rclone", "fuse.goofys", "fuse.ceph-fuse"}
)


def mounts_here() -> str:
    """The text of /proc/mounts; nothing on a system without it, and then there is nothing to go by."""
    try:
        return Path("/proc/mounts").read_text("utf-8", "replace")
    except OSError:
        return ""


def file_system_of(path: str, mounts: str) -> str:
    """The kind of file system that `path` lies on, from the text of /proc/mounts; '' when it does not say."""
    best, kind = "", ""
    for line in mounts.splitlines():
        fields = line.split()
        if len(fields) < 3:
            continue
        point = fields[1].replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, fields[2]
    return kind
