"""Operations that need boto3: bucket setup, version listing, presigned URLs. All of them block; call them in a thread.

Rules that others have added to the bucket are kept. Our rules have their own ids, and only those are replaced.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from importlib import import_module
from typing import Any, Literal

from millrace.domain.errors import InvalidInput, MissingDriver, StoreError
from millrace.store.object.driver import NoAnswer, Version, VersionPage
from millrace.store.object.s3.address import BucketAddress

# Everything except jobs (tasks/) and their large data: old versions of these are never read.
INDEXES = (
    *("ready/", "held/", "leases/", "done/", "gone/", "deps/", "due/", "upkeep/", "ticks/"),
    *("lines/", "keys/", "control/", "schedules/", "workers/", "writers/", "feed/", "batches/", "archive/", "probe/"),
)
MAX_DELETE = 1_000
_OURS = "millrace-"
_ABSENT = ("NoSuchLifecycleConfiguration", "NoSuchCORSConfiguration", "404")


class BucketAdmin:
    def __init__(self, address: BucketAddress, timeout: float = 10.0) -> None:
        try:
            boto3, config = import_module("boto3"), import_module("botocore.config")
        except ImportError:
            raise MissingDriver("s3", "s3") from None
        self.address = address
        self._client: Any = boto3.client(
            "s3",
            endpoint_url=address.endpoint,
            region_name=address.region,
            aws_access_key_id=address.access_key,
            aws_secret_access_key=address.secret_key,
            aws_session_token=address.session_token,
            config=config.Config(
                s3={"addressing_style": address.addressing},
                connect_timeout=timeout,
                read_timeout=timeout,
                retries={"total_max_attempts": 1},
            ),
        )

    def setup(
        self,
        *,
        versioning: bool = True,
        origins: Sequence[str] = (),
        index_prefixes: Sequence[str] = INDEXES,
        keep_days: int = 1,
    ) -> list[str]:
        """Configure the bucket for a store, and return descriptions of what was done. This can be repeated safely.

        `origins` are the web origins that may use the bucket from a browser. If there are none, no CORS rule is
        created. Old versions under `index_prefixes` are never read and would accumulate, so they are deleted after
        `keep_days`.
        """
        check_origins(origins)
        done = [self.create()]
        if versioning:
            done.append(self.keep_versions())
        if origins:
            done.append(self.allow(origins))
        done.append(self.expire(index_prefixes, keep_days))
        return done

    def keep_versions(self) -> str:
        self._call("put_bucket_versioning", VersioningConfiguration={"Status": "Enabled"})
        return "versioning is on"

    def create(self) -> str:
        region = self.address.region
        where = {"CreateBucketConfiguration": {"LocationConstraint": region}} if region != "us-east-1" else {}
        try:
            self._call("create_bucket", **where)
        except StoreError as error:
            if "BucketAlreadyOwnedByYou" not in str(error):
                raise
            return f"bucket {self.address.bucket} was there"
        return f"bucket {self.address.bucket} is there"

    def allow(self, origins: Sequence[str]) -> str:
        """Add a CORS rule for these origins, and return a description of it.

        The rule exposes the ETag header, which a page needs for safe swaps.
        """
        check_origins(origins)
        rule: dict[str, Any] = {
            "ID": self.cors_rule,
            "AllowedOrigins": list(origins),
            "AllowedMethods": ["GET", "PUT", "HEAD"],
            "AllowedHeaders": ["*"],
            "ExposeHeaders": ["ETag", "x-amz-version-id", "Date"],
            "MaxAgeSeconds": 600,
        }
        others = self._others("get_bucket_cors", "CORSRules", {rule["ID"]})
        self._call("put_bucket_cors", CORSConfiguration={"CORSRules": [*others, rule]})
        return f"pages of {', '.join(origins)} may use it, and see ETags"

    @property
    def cors_rule(self) -> str:
        return _OURS + (self.address.prefix or "all")

    def expire(self, prefixes: Sequence[str], days: int) -> str:
        """Add lifecycle rules for these prefixes, and return a description of them.

        Old versions are deleted after `days` days. A delete marker is deleted when no version is left.
        """
        rules: list[dict[str, Any]] = [
            {
                "ID": f"{_OURS}{self.address.prefix}{prefix}",
                "Status": "Enabled",
                "Filter": {"Prefix": self.address.prefix + prefix},
                "NoncurrentVersionExpiration": {"NoncurrentDays": days},
                "Expiration": {"ExpiredObjectDeleteMarker": True},
                "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 1},
            }
            for prefix in prefixes
        ]
        others = self._others("get_bucket_lifecycle_configuration", "Rules", {rule["ID"] for rule in rules})
        self._call("put_bucket_lifecycle_configuration", LifecycleConfiguration={"Rules": [*others, *rules]})
        return f"old versions of {', '.join(prefixes)} are removed after {days} d"

    def _others(self, ask: str, name: str, ours: set[Any]) -> list[Any]:
        return [rule for rule in self.rules(ask, name) if rule.get("ID") not in ours]

    def rules(self, ask: str, name: str) -> list[Any]:
        """Call the operation `ask`, and return the rules in the list `name` of its response. Rules of others are
        included.

        Return an empty list if the bucket has no rules.
        """
        try:
            return list(self._call(ask).get(name, []))
        except StoreError as error:
            if any(code in str(error) for code in _ABSENT):
                return []
            raise

    def ask(self, operation: str) -> Any:
        """Call a read operation on the bucket and return the response."""
        return self._call(operation)

    def versions(self, key: str, after: str | None, limit: int) -> VersionPage:
        """Return a page of the versions of an object, newest first. The page starts after the version `after`."""
        name = self.address.prefix + key
        place = {"KeyMarker": name, "VersionIdMarker": after} if after else {}
        reply = self._call("list_object_versions", Prefix=name, MaxKeys=limit, **place)
        items = [*reply.get("Versions", ()), *reply.get("DeleteMarkers", ())]
        items.sort(key=lambda item: (item["IsLatest"], item["LastModified"]), reverse=True)
        found = [
            Version(item["VersionId"], _milliseconds(item["LastModified"]), item.get("Size", 0), "Size" not in item)
            for item in items
            if item["Key"] == name  # a longer key with the same beginning follows it
        ]
        more = reply.get("IsTruncated") and reply.get("NextKeyMarker") == name
        return VersionPage(tuple(found), reply.get("NextVersionIdMarker") if more else None)

    def presign(self, key: str, method: Literal["GET", "PUT"] = "GET", *, seconds: int = 900) -> str:
        """Return a URL that allows one operation on one object for `seconds` seconds."""
        if not 1 <= seconds <= 7 * 86_400:
            raise InvalidInput(f"a presigned URL is good for 1 second to 7 days, not {seconds} s")
        operation = {"GET": "get_object", "PUT": "put_object"}[method]
        where = {"Bucket": self.address.bucket, "Key": self.address.prefix + key}
        return str(self._client.generate_presigned_url(operation, Params=where, ExpiresIn=seconds))

    def put_file(self, key: str, body: bytes, kind: str) -> None:
        """Upload a file for browsers. Its headers make a browser revalidate the file before each use."""
        name = self.address.prefix + key
        self._call("put_object", Key=name, Body=body, ContentType=kind, CacheControl="no-cache")

    def get_file(self, key: str) -> bytes | None:
        try:
            body: bytes = self._call("get_object", Key=self.address.prefix + key)["Body"].read()
        except StoreError as error:
            if any(code in str(error) for code in ("NoSuchKey", "NoSuchBucket", "(404)")):
                return None
            raise
        return body

    def remove(self, key: str, tag: str) -> bool:
        """Delete an object with all its versions if the newest version has this tag. Return whether it was deleted.

        Versions are deleted by id, the newest one last, so that no older version becomes visible. A concurrent write
        creates a version with another id, which is not deleted.
        """
        name = self.address.prefix + key
        items: list[Any] = []
        place: dict[str, str] = {}
        while True:
            reply = self._call("list_object_versions", Prefix=name, **place)
            found = [*reply.get("Versions", ()), *reply.get("DeleteMarkers", ())]
            items += [item for item in found if item["Key"] == name]
            if not reply.get("IsTruncated") or reply.get("NextKeyMarker") != name:
                break
            place = {"KeyMarker": name, "VersionIdMarker": reply["NextVersionIdMarker"]}
        newest = next((item for item in items if item["IsLatest"]), None)
        if newest is None or newest.get("ETag", "").strip('"') != tag or any(_is_null(item) for item in items):
            return False
        older = [{"Key": name, "VersionId": item["VersionId"]} for item in items if item is not newest]
        for start in range(0, len(older), MAX_DELETE):
            some = {"Objects": older[start : start + MAX_DELETE], "Quiet": True}
            if self._call("delete_objects", Delete=some).get("Errors"):
                return False
        self._call("delete_object", Key=name, VersionId=newest["VersionId"])
        return True

    def _call(self, operation: str, **arguments: Any) -> Any:
        errors = import_module("botocore.exceptions")
        try:
            return getattr(self._client, operation)(Bucket=self.address.bucket, **arguments)
        except errors.ClientError as error:
            code, text = error.response["Error"].get("Code", ""), error.response["Error"].get("Message", "")
            status = error.response["ResponseMetadata"].get("HTTPStatusCode", 0)
            kind = NoAnswer if status >= 500 or code in ("SlowDown", "RequestTimeout") else StoreError
            raise kind(f"{self.address.url}: {operation} was refused ({code or status}): {text}") from None
        except errors.BotoCoreError as error:
            raise NoAnswer(f"{self.address.url}: {operation} failed: {type(error).__name__}") from None


def check_origins(origins: Sequence[str]) -> None:
    if any(origin == "*" or "://" not in origin for origin in origins):
        raise InvalidInput("origins are whole ones such as https://jobs.example.com; '*' would let any page write")


def _is_null(item: Any) -> bool:
    """Return whether the version was written while versioning was off. The id of such a version is "null", which a
    later write may have reused.
    """
    return item["VersionId"] in (None, "", "null")


def _milliseconds(moment: datetime) -> int:
    return int(moment.timestamp() * 1_000)
