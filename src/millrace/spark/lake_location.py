"""Where a lake is: a directory of this machine, or a prefix of an S3 bucket.

Spark's executors get the location without credentials. Each process reads these from its own environment, with the
names that the S3 store uses (`millrace.store.object.s3.BucketAddress`).
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from millrace.app.local_path import local_path
from millrace.domain.errors import InvalidInput

if TYPE_CHECKING:
    from pyarrow import fs

    from millrace.store.object.s3 import BucketAddress

_S3 = re.compile(r"s3:/+", re.IGNORECASE)  # Path turns // into /
_SCHEME = re.compile(r"(?!file:)([A-Za-z][A-Za-z0-9+.-]+):/", re.IGNORECASE)


@dataclass(frozen=True)
class LakeLocation:
    """`url` is an absolute path, or an s3:// URL with its options, without credentials."""

    url: str

    @classmethod
    def parse(cls, given: str | os.PathLike[str]) -> LakeLocation:
        """Return the location for a path, a file:// URL or an s3:// URL. Raises InvalidInput for other schemes."""
        text = os.fspath(given)
        if _S3.match(text):
            return cls(_bucket(_S3.sub("s3://", text, count=1)).url)
        if scheme := _SCHEME.match(text):
            raise InvalidInput(
                f"the lake {text!r} is a URL, and {scheme[1]}:// is not supported here. A lake is a path on this "
                "machine, or s3://bucket/prefix"
            )
        return cls(str(local_path(given, "the lake").absolute()))

    def __str__(self) -> str:
        return self.url

    @property
    def is_local(self) -> bool:
        return not self.url.startswith("s3://")

    @property
    def root(self) -> str:
        """The lake's path in its file system: a directory, or `bucket/prefix`."""
        if self.is_local:
            return self.url
        address = _bucket(self.url)
        return f"{address.bucket}/{address.prefix}".rstrip("/")

    def table_uri(self, table: str) -> str:
        """The address of a table, as delta-rs and other Delta clients accept it."""
        return f"{self.root}/{table}" if self.is_local else f"s3://{self.root}/{table}"

    def flush(self, path: str) -> None:
        """Flush a new file and its directory entry to disk. A bucket has stored an object when it answers."""
        if not self.is_local:
            return
        for each in (path, os.path.dirname(path)):
            opened = os.open(each, os.O_RDONLY)
            try:
                os.fsync(opened)
            finally:
                os.close(opened)

    def file_system(self) -> fs.FileSystem:
        from pyarrow import fs

        if self.is_local:
            return fs.LocalFileSystem()
        address = _bucket(self.url)
        given: dict[str, Any] = {
            "access_key": address.access_key,
            "secret_key": address.secret_key,
            "session_token": address.session_token,
        }
        if address.endpoint is not None:
            given["scheme"], _, given["endpoint_override"] = address.endpoint.partition("://")
        virtual = address.addressing == "virtual"
        return fs.S3FileSystem(region=address.region, force_virtual_addressing=virtual, **given)

    def storage_options(self) -> dict[str, str]:
        """The options with which delta-rs opens the tables. They contain the credentials, so they stay in this
        process.
        """
        if self.is_local:
            return {}
        address = _bucket(self.url)
        options = {
            "AWS_REGION": address.region,
            "AWS_ENDPOINT_URL": address.endpoint,
            "AWS_ALLOW_HTTP": "true" if (address.endpoint or "").startswith("http://") else None,
            "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "true" if address.addressing == "virtual" else "false",
            "AWS_ACCESS_KEY_ID": address.access_key,
            "AWS_SECRET_ACCESS_KEY": address.secret_key,
            "AWS_SESSION_TOKEN": address.session_token,
            "aws_conditional_put": "etag",  # two commits of one version: the server accepts only the first
        }
        return {name: value for name, value in options.items() if value is not None}


def _bucket(url: str) -> BucketAddress:
    from millrace.store.object.s3 import BucketAddress

    return BucketAddress.parse(url)
