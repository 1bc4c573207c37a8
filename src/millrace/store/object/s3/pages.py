"""The dashboard in a bucket: its files under `ui/`. It needs no web server of its own.

`config.json` is written last. It contains the address of the bucket and a hash of the uploaded files. So an incomplete
upload is detected and repeated.
"""

from __future__ import annotations

import hashlib
import mimetypes
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import msgspec

from millrace.store.object.s3.address import BucketAddress
from millrace.store.object.s3.admin import BucketAdmin

FOLDER = "ui/"
CONFIG = "config.json"
INDEX = "index.html"
AT_ONCE = 8
# The policy that `millrace serve` sends as a header; a bucket cannot.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self' {origin}; manifest-src 'self'; base-uri 'none'; form-action 'none'"
)


class PageConfig(msgspec.Struct, frozen=True):
    """The configuration with which the dashboard finds the bucket. Everyone who can open the dashboard can read it."""

    bucket: str
    prefix: str
    endpoint: str | None
    region: str
    addressing: str
    version: str
    redact: tuple[str, ...]  # names of redacted fields
    files: str  # a hash over all of them


def config_of(address: BucketAddress, files: Mapping[str, bytes], version: str, redact: Iterable[str]) -> PageConfig:
    whole = hashlib.sha256()
    for name, body in sorted(files.items()):
        whole.update(f"{name} {len(body)}\n".encode() + body)
    return PageConfig(
        address.bucket,
        address.prefix,
        address.endpoint,
        address.region,
        address.addressing,
        version,
        tuple(redact),
        whole.hexdigest(),
    )


def is_there(admin: BucketAdmin, config: PageConfig) -> bool:
    return admin.get_file(FOLDER + CONFIG) == msgspec.json.encode(config)


def upload(admin: BucketAdmin, files: Mapping[str, bytes], config: PageConfig) -> None:
    origin = origin_of(admin.address)

    def put(name: str) -> None:
        kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
        body = files[name]
        admin.put_file(FOLDER + name, with_policy(body, origin) if name == INDEX else body, kind)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        for _ in pool.map(put, files):  # raises the first error
            pass
    admin.put_file(FOLDER + CONFIG, msgspec.json.encode(config), "application/json")


def origin_of(address: BucketAddress) -> str:
    """Return the web origin to which requests for this bucket's objects are sent."""
    server = urlsplit(address.server)
    host = f"{address.bucket}.{server.netloc}" if address.addressing == "virtual" else server.netloc
    return f"{server.scheme}://{host}"


def page_url(address: BucketAddress) -> str:
    folder = f"{address.prefix}{FOLDER}{INDEX}"
    path = folder if address.addressing == "virtual" else f"{address.bucket}/{folder}"
    return f"{origin_of(address)}/{path}"


def with_policy(page: bytes, origin: str) -> bytes:
    """Return the HTML page with a Content-Security-Policy, placed before everything that the page loads."""
    policy = f'<meta http-equiv="Content-Security-Policy" content="{POLICY.format(origin=origin)}">'
    return page.replace(b"<head>", b"<head>\n" + policy.encode(), 1)
