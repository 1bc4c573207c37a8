"""Paths of this machine: a URL of another place is refused, and never becomes a folder that is named `s3:`."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace.app.local_path import local_path
from millrace.domain.errors import InvalidInput


@pytest.mark.parametrize("scheme", ["s3", "s3a", "s3n", "gs", "abfss", "hdfs", "http", "https", "S3", "x-y.z+1"])
@pytest.mark.parametrize("kind", [str, Path])
def test_every_scheme_but_file_is_refused(scheme: str, kind: type):
    """Also where a Path has already made one slash of two."""
    with pytest.raises(InvalidInput, match=r"--lake .*:// is not supported here: it must be a path on this machine"):
        local_path(kind(f"{scheme}://bucket/lake"), "--lake")


@pytest.mark.parametrize("kind", [str, Path])
def test_a_url_of_this_machine_is_its_path(kind: type):
    assert local_path(kind("file:///var/lake"), "--lake") == Path("/var/lake")
    assert local_path(kind("file:///var/my%20lake"), "--lake") == Path("/var/my lake")
    assert local_path("file://localhost/var/lake", "--lake") == Path("/var/lake")


@pytest.mark.parametrize("url", ["file://server/share", "file://lake", "file:///x?a=1", "file:///x#y"])
def test_a_url_of_another_machine_is_refused(url: str):
    with pytest.raises(InvalidInput, match="is not a file on this machine"):
        local_path(url, "--lake")


@pytest.mark.parametrize("path", ["lake", "./lake", "/var/lake", "a:b", "2026-11-15T10:00/x", "lake/s3:/x", "C:/x"])
def test_paths_stay_as_they_are(path: str):
    assert local_path(path, "--lake") == Path(path) == local_path(Path(path), "--lake")
