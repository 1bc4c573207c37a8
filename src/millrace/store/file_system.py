"""Finds the type of the file system of a path. Stores that lock files must not be on a network file system."""

from __future__ import annotations

from pathlib import Path

NETWORK_FILE_SYSTEMS = frozenset(
    {"9p", "afs", "beegfs", "ceph", "cifs", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "smb3"}
    | {"smbfs", "fuse.glusterfs", "fuse.s3fs", "fuse.sshfs", "fuse.rclone", "fuse.goofys", "fuse.ceph-fuse"}
)


def mounts_here() -> str:
    """Return the text of /proc/mounts; an empty string if the system does not have this file."""
    try:
        return Path("/proc/mounts").read_text("utf-8", "replace")
    except OSError:
        return ""


def file_system_of(path: str, mounts: str) -> str:
    """Return the type of the file system that contains `path`, found in the text of /proc/mounts; '' if unknown."""
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
