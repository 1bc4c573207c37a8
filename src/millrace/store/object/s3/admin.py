"""What needs boto3: bucket set-up, version listing, presigned URLs. Everything here blocks; call it in a thread.

Rules and permissions of others on the same bucket stay: ours carry names of their own and only those are replaced.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from importlib import import_module
from typing import Any, Literal

from millrace.domain.errors import InvalidInput, MissingDriver, StoreError
from millrace.store.object.driver import NoAnswer, Version, VersionPage
from millrace.store.object.s3.address import Address

INDEXES = ("ready/", "leases/", "workers/", "probe/")
_OURS = "millrace-"
_ABSENT = ("NoSuchLifecycleConfiguration", "NoSuchCORSConfiguration", "404")


class BucketAdmin:
    def __init__(self, address: Address, timeout: float = 10.0) -> None:
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
        """Make the bucket what a store needs; may be repeated. Answers what was done, in words.

        `origins` are the web pages that may use the bucket from a browser; without any, no CORS rule is made. Old
        versions under `index_prefixes` are thrown away after `keep_days`: nobody reads them, and they would pile up
        for ever (BO-09).
        """
        if any(origin == "*" or "://" not in origin for origin in origins):
            raise InvalidInput("origins are whole ones such as https://jobs.example.com; '*' would let any page write")
        done = [self._create()]
        if versioning:
            self._call("put_bucket_versioning", VersioningConfiguration={"Status": "Enabled"})
            done.append("versioning is on")
        if origins:
            self._allow(origins)
            done.append(f"pages of {', '.join(origins)} may use it, and see ETags")
        self._expire(index_prefixes, keep_days)
        done.append(f"old versions of {', '.join(index_prefixes)} are removed after {keep_days} d")
        return done

    def _create(self) -> str:
        region = self.address.region
        where = {"CreateBucketConfiguration": {"LocationConstraint": region}} if region != "us-east-1" else {}
        try:
            self._call("create_bucket", **where)
        except StoreError as error:
            if "BucketAlreadyOwnedByYou" not in str(error):
                raise
            return f"bucket {self.address.bucket} was there"
        return f"bucket {self.address.bucket} is there"

    def _allow(self, origins: Sequence[str]) -> None:
        """A page needs the ETag to swap safely; without it, it could only overwrite (BO-10)."""
        rule: dict[str, Any] = {
            "ID": _OURS + (self.address.prefix or "all"),
            "AllowedOrigins": list(origins),
            "AllowedMethods": ["GET", "PUT", "HEAD"],
            "AllowedHeaders": ["*"],
            "ExposeHeaders": ["ETag", "x-amz-version-id", "Date"],
            "MaxAgeSeconds": 600,
        }
        others = self._others("get_bucket_cors", "CORSRules", {rule["ID"]})
        self._call("put_bucket_cors", CORSConfiguration={"CORSRules": [*others, rule]})

    def _expire(self, prefixes: Sequence[str], days: int) -> None:
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

    def _others(self, ask: str, name: str, ours: set[Any]) -> list[Any]:
        try:
            found = self._call(ask)
        except StoreError as error:
            if any(code in str(error) for code in _ABSENT):
                return []
            raise
        return [rule for rule in found.get(name, []) if rule.get("ID") not in ours]

    def versions(self, key: str, after: str | None, limit: int) -> VersionPage:
        """Newest first. `after` is the version to go on behind."""
        name = self.address.prefix + key
        place = {"KeyMarker": name, "VersionIdMarker": after} if after else {}
        reply = self._call("list_object_versions", Prefix=name, MaxKeys=limit, **place)
        items = [*reply.get("Versions", ()), *reply.get("DeleteMarkers", ())]
        items.sort(key=lambda item: (item["IsLatest"], item["LastModified"]), reverse=True)
        found = [
            Version(item["VersionId"], _milliseconds(item["LastModified"]), item.get("Size", 0), "Size" not in item)
            for item in items
            if item["Key"] == name  # a longer key that begins like ours comes after it
        ]
        more = reply.get("IsTruncated") and reply.get("NextKeyMarker") == name
        return VersionPage(tuple(found), reply.get("NextVersionIdMarker") if more else None)

    def presign(self, key: str, method: Literal["GET", "PUT"] = "GET", *, seconds: int = 900) -> str:
        """A URL that does one thing to one object for a while, for whoever holds it."""
        if not 1 <= seconds <= 7 * 86_400:
            raise InvalidInput(f"a presigned URL is good for 1 second to 7 days, not {seconds} s")
        operation = {"GET": "get_object", "PUT": "put_object"}[method]
        where = {"Bucket": self.address.bucket, "Key": self.address.prefix + key}
        return str(self._client.generate_presigned_url(operation, Params=where, ExpiresIn=seconds))

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


def _milliseconds(moment: datetime) -> int:
    return int(moment.timestamp() * 1_000)
