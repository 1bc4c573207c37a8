"""Opens object stores from a URL: file:///directory and s3://bucket/prefix."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from millrace.store.clock import Clock
from millrace.store.object.driver import Driver
from millrace.store.object.keys import MARKERS
from millrace.store.object.options import bucket_environment, object_options
from millrace.store.object.store import ObjectStore

LOCAL_FEED_DELAY = 2_000  # milliseconds; one machine has one clock, and a write takes no longer


def open_directory(
    path: str, level: Literal["full", "relaxed"], clock: Clock | None = None, env: Mapping[str, str] | None = None
) -> ObjectStore:
    from millrace.store.object.directory import DirectoryBlobs

    def driver() -> Driver:
        return DirectoryBlobs(
            path, durability=level, keep_versions=["tasks/"], append=["lines/"], markers=MARKERS, clock=clock
        )

    return ObjectStore(driver, clock=clock, options=object_options(env, feed_delay=LOCAL_FEED_DELAY))


def open_bucket(url: str, clock: Clock | None = None, env: Mapping[str, str] | None = None) -> ObjectStore:
    from millrace.store.object.s3 import BucketAddress, S3Blobs

    address = BucketAddress.parse(url, bucket_environment(env))

    def driver() -> Driver:
        return S3Blobs(address, clock=clock)

    return ObjectStore(driver, clock=clock, options=object_options(env))
