"""The address of a bucket and its credentials. Credentials come from the environment and are never shown.

    s3://bucket/prefix?endpoint=http://127.0.0.1:9000&region=eu-central-1&addressing=path&versioning=optional

What the URL leaves out is read from `AWS_*` and `S3_*` variables. If the environment contains no access keys, boto3
looks for credentials; it also supports profiles, single sign-on and roles of machines and containers.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from millrace.domain.errors import InvalidInput
from millrace.store.object.names import check_key

OPTIONS = ("endpoint", "region", "addressing", "versioning")


@dataclass(frozen=True)
class BucketAddress:
    bucket: str
    prefix: str = ""  # ends in "/" unless it is empty
    endpoint: str | None = None
    region: str = "us-east-1"
    addressing: Literal["path", "virtual"] = "path"
    versioning: Literal["required", "optional"] = "required"
    access_key: str | None = field(default=None, repr=False)
    secret_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)

    @classmethod
    def parse(cls, url: str, env: Mapping[str, str] | None = None) -> BucketAddress:
        """Parse a URL. Errors name the option, but never a value that may be secret."""
        env = os.environ if env is None else env
        parts = urlsplit(url)
        if parts.scheme != "s3":
            raise InvalidInput(f"a bucket is named by s3://bucket/prefix, not by {parts.scheme}://")
        if "@" in parts.netloc:
            raise InvalidInput(
                "an s3:// URL carries no credentials: URLs end up in logs. "
                "Put them into AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY."
            )
        bucket = parts.netloc or env.get("S3_BUCKET", "")
        if not bucket or ":" in bucket:
            raise InvalidInput("an s3:// URL names a bucket: s3://bucket/prefix?endpoint=http://host:port")
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        unknown = sorted(set(options) - set(OPTIONS))
        if unknown:
            raise InvalidInput(f"s3:// has no option {unknown[0]!r}; it takes {', '.join(OPTIONS)}")
        prefix = unquote(parts.path).strip("/")
        endpoint = options.get("endpoint") or _first(env, "S3_ENDPOINT", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
        return cls(
            bucket=bucket,
            prefix=check_key(prefix) + "/" if prefix else "",
            endpoint=_checked_endpoint(endpoint),
            region=options.get("region") or _first(env, "S3_REGION", "AWS_REGION", "AWS_DEFAULT_REGION") or "us-east-1",
            addressing=_addressing(options.get("addressing") or env.get("S3_ADDRESSING"), endpoint),
            versioning=_versioning(options.get("versioning"), env),
            access_key=_first(env, "AWS_ACCESS_KEY_ID", "S3_ACCESS_KEY_ID"),
            secret_key=_first(env, "AWS_SECRET_ACCESS_KEY", "S3_SECRET_ACCESS_KEY"),
            session_token=_first(env, "AWS_SESSION_TOKEN", "S3_SESSION_TOKEN"),
        )

    @property
    def url(self) -> str:
        """The URL of this bucket, without credentials."""
        options = {"endpoint": self.endpoint or "", "region": self.region if self.region != "us-east-1" else ""}
        usual = "path" if self.endpoint else "virtual"
        options["addressing"] = self.addressing if self.addressing != usual else ""
        options["versioning"] = self.versioning if self.versioning != "required" else ""
        query = urlencode({name: value for name, value in options.items() if value}, safe=":/")
        return f"s3://{self.bucket}/{quote(self.prefix.rstrip('/'))}".rstrip("/") + (f"?{query}" if query else "")

    @property
    def server(self) -> str:
        """The URL to which requests for the server's time are sent."""
        return self.endpoint or f"https://s3.{self.region}.amazonaws.com"


def _first(env: Mapping[str, str], *names: str) -> str | None:
    return next((env[name] for name in names if env.get(name)), None)


def _checked_endpoint(endpoint: str | None) -> str | None:
    if endpoint is None:
        return None
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidInput("endpoint is a URL such as https://s3.example.com or http://127.0.0.1:9000")
    if "@" in parts.netloc:
        raise InvalidInput("endpoint carries no credentials; put them into AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
    return endpoint.rstrip("/")


def _addressing(value: str | None, endpoint: str | None) -> Literal["path", "virtual"]:
    """Return the addressing style. The default is "path" for a server with an endpoint, and "virtual" for AWS.

    Self-hosted servers rarely have a host name per bucket; AWS requires one.
    """
    match value:
        case None:
            return "path" if endpoint else "virtual"
        case "path" | "virtual":
            return value
        case _:
            raise InvalidInput(f"addressing is 'path' or 'virtual', not {value!r}")


def _versioning(value: str | None, env: Mapping[str, str]) -> Literal["required", "optional"]:
    match value:
        case "required" | "optional":
            return value
        case None:
            allowed = _first(env, "MILLRACE_ALLOW_NO_VERSIONING", "QO_ALLOW_NO_VERSIONING")
            return "optional" if (allowed or "").lower() in ("1", "true", "yes", "on") else "required"
        case _:
            raise InvalidInput(f"versioning is 'required' or 'optional', not {value!r}")
