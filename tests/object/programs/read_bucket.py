"""Read a queue out of a bucket with boto3 and json alone, as somebody would who has nothing else.

python read_bucket.py ENDPOINT BUCKET PREFIX     credentials as boto3 finds them; prints one JSON document
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from typing import Any

import boto3

Document = dict[str, Any]


class Bucket:
    def __init__(self, endpoint: str, bucket: str, prefix: str) -> None:
        self.client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")
        self.bucket, self.prefix = bucket, prefix

    def all_keys(self) -> list[str]:
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=self.prefix)
        return [item["Key"].removeprefix(self.prefix) for page in pages for item in page.get("Contents", [])]

    def read(self, key: str, **version: str) -> bytes:
        body: bytes = self.client.get_object(Bucket=self.bucket, Key=self.prefix + key, **version)["Body"].read()
        return body

    def document(self, key: str, **version: str) -> Document:
        found: Document = json.loads(self.read(key, **version))
        return found

    def value(self, document: Document) -> Document:
        """What an object says: its value, or what is pending if the object that decides lists the transaction."""
        pending = document.get("pending")
        if pending is not None and pending["tx"] in self.document(pending["primary"]).get("commits", {}):
            next_value: Document = pending["next"]
            return next_value
        value: Document = document.get("value", {})
        return value

    def versions(self, key: str) -> list[str]:
        """Oldest first."""
        pages = self.client.get_paginator("list_object_versions").paginate(Bucket=self.bucket, Prefix=self.prefix + key)
        found = [item for page in pages for item in page.get("Versions", []) if item["Key"] == self.prefix + key]
        return [item["VersionId"] for item in reversed(found)]


def shown(bucket: Bucket, key: str) -> Document:
    """A job: where it stands, what it was asked, what came of it, and each step on the way."""
    value = bucket.value(bucket.document(key))
    job = value["job"]
    data = value.get("data", {})
    return {
        "key": key,
        "state": job["state"],
        "task": job["spec"]["task"],
        "queue": job["spec"].get("queue", "default"),
        "input": json.loads(bucket.read(data["input"])) if "input" in data else value.get("input"),
        "output": value.get("output"),
        "attempts": job.get("attempt", 0),
        "worker": job.get("worker"),
        "filed": value["filed"],
        "waits_for": value.get("parents", []),
        "events": [filed["event"]["kind"] for filed in value["events"]],
        "versions": [
            document["value"]["job"]["state"]
            for version in bucket.versions(key)
            if "value" in (document := bucket.document(key, VersionId=version)) and "pending" not in document
        ],
    }


def main(endpoint: str, name: str, prefix: str) -> None:
    bucket = Bucket(endpoint, name, prefix)
    below: defaultdict[str, list[str]] = defaultdict(list)
    for key in bucket.all_keys():
        below[key.split("/")[0]].append(key)
    jobs = {key.split("/")[2].removesuffix(".json"): shown(bucket, key) for key in below["tasks"]}
    feed = [filed["event"] for key in below["feed"] for filed in bucket.document(key)["events"]]
    settings = {key: bucket.value(bucket.document(key)) for key in below["control"]}
    workers = [bucket.value(bucket.document(key)) for key in below["workers"]]
    assert not any(module.split(".")[0] == "millrace" for module in sys.modules)
    print(json.dumps({"below": below, "jobs": jobs, "feed": feed, "control": settings, "workers": workers}))


if __name__ == "__main__":
    main(*sys.argv[1:])
