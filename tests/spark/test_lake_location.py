"""Where a lake can be, and what Spark's executors are told of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace.domain.errors import InvalidInput
from millrace.spark.lake_location import LakeLocation

URL = "s3://bucket/a/lake?endpoint=http://127.0.0.1:9000&region=eu-central-1"


@pytest.mark.parametrize("scheme", ["s3a", "s3n", "gs", "abfss", "hdfs", "https"])
@pytest.mark.parametrize("kind", [str, Path])
def test_other_schemes_are_refused(scheme: str, kind: type):
    """Also where a Path has already made one slash of two."""
    with pytest.raises(InvalidInput, match=rf"{scheme}:// is not supported here. A lake is a path on this machine, or"):
        LakeLocation.parse(kind(f"{scheme}://bucket/lake"))


def test_paths_and_urls_are_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    here = LakeLocation.parse("lake")
    assert here.root == here.url == f"{tmp_path}/lake" and here.is_local
    assert here == LakeLocation.parse(tmp_path / "lake") == LakeLocation.parse(f"file://{tmp_path}/lake")

    bucket = LakeLocation.parse(URL)
    assert (bucket.root, bucket.table_uri("jobs")) == ("bucket/a/lake", "s3://bucket/a/lake/jobs")
    assert not bucket.is_local and LakeLocation.parse(bucket.url) == bucket
    assert LakeLocation.parse(Path("s3://bucket/a/lake")).root == "bucket/a/lake"


@pytest.mark.parametrize("url", ["s3://key:secret@bucket/lake", "s3://bucket/lake?acl=public"])
def test_a_url_of_a_bucket_is_checked(url: str):
    with pytest.raises(InvalidInput):
        LakeLocation.parse(url)


def test_credentials_are_read_by_each_process_and_never_sent(monkeypatch: pytest.MonkeyPatch):
    for name in (
        "MILLRACE_ALLOW_NO_VERSIONING",
        "QO_ALLOW_NO_VERSIONING",
        "S3_REGION",
        "S3_ADDRESSING",
    ):  # of the server of other tests
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "the-key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "the-secret")
    location = LakeLocation.parse(URL)

    assert vars(location) == {"url": URL}  # which is all that a task gets
    options = location.storage_options()
    assert options["AWS_SECRET_ACCESS_KEY"] == "the-secret"
    assert options["aws_conditional_put"] == "etag"
    assert (options["AWS_ENDPOINT_URL"], options["AWS_ALLOW_HTTP"]) == ("http://127.0.0.1:9000", "true")
