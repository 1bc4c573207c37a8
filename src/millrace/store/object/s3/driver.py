"""The S3 driver: conditional PUTs through obstore, one attempt each.

obstore's own retries are off. A repeated PUT of the same body would be refused because of the first one, which would
look like a lost race. boto3 is loaded only for operations that obstore does not have (`admin.py`).
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from millrace.domain.errors import MissingDriver, StoreError
from millrace.store.clock import Clock, system_clock
from millrace.store.object.driver import (
    UNCHANGED,
    Answer,
    Blob,
    Expect,
    Listed,
    Listing,
    NoAnswer,
    Read,
    Unavailable,
    VersionPage,
    Want,
    Write,
    WriteReply,
)
from millrace.store.object.probe import Findings, UnsafeStore, probe
from millrace.store.object.s3.address import BucketAddress
from millrace.store.object.s3.clock import ServerClock, ask
from millrace.store.object.s3.replies import answer_of, no_answer

if TYPE_CHECKING:
    from obstore.store import S3Store

    from millrace.store.object.s3.admin import BucketAdmin

T = TypeVar("T")
MAX_PAGE = 1_000  # the most keys in one LIST response
# The places that this process has probed, with the spelling of their tags.
_proved: dict[BucketAddress, tuple[bool, Findings]] = {}


class S3Blobs:
    """The S3 driver. `findings` is the result of the probe at connect."""

    durability = "as durable as the bucket: on AWS, survives the loss of a data centre"
    refusal_is_final = False  # a proxy may send a request twice

    def __init__(
        self,
        address: BucketAddress | str,
        *,
        concurrency: int = 32,
        timeout: float = 10.0,
        check: bool = True,
        clock: Clock | None = None,
    ) -> None:
        self.address = BucketAddress.parse(address) if isinstance(address, str) else address
        self.requests: Counter[str] = Counter()
        self.findings: Findings | None = None
        self.quotes = True  # whether tags are sent in quotation marks; Ceph expects none
        self.clock = ServerClock(wall=system_clock)
        self._given_clock = clock
        self._timeout = timeout
        self._check = check
        self._reads_only = False
        self._turns = asyncio.Semaphore(concurrency)
        self._process = os.getpid()

    @property
    def url(self) -> str:
        return self.address.url

    @property
    def keeps_versions(self) -> bool:
        if self._reads_only:  # not probed: a store that was opened for writing has required versions
            return self.address.versioning == "required"
        return self.findings is not None and self.findings.versioned

    def __repr__(self) -> str:
        return f"S3Blobs({self.url!r})"

    @cached_property
    def _store(self) -> S3Store:
        try:
            from obstore.store import S3Store
        except ImportError:
            raise MissingDriver("s3", "s3") from None
        address = self.address
        keys: dict[str, Any] = {}
        if address.access_key and address.secret_key:
            keys = {"access_key_id": address.access_key, "secret_access_key": address.secret_key}
            if address.session_token:
                keys["session_token"] = address.session_token
        else:
            from obstore.auth.boto3 import Boto3CredentialProvider

            keys["credential_provider"] = Boto3CredentialProvider()
        if address.endpoint:
            keys["endpoint"] = address.endpoint
        return S3Store(
            address.bucket,
            region=address.region,
            virtual_hosted_style_request=address.addressing == "virtual",
            client_options={
                "allow_http": (address.endpoint or "").startswith("http://"),
                "timeout": timedelta(seconds=self._timeout),
                "connect_timeout": timedelta(seconds=min(5.0, self._timeout)),
            },
            retry_config={"max_retries": 0},
            **keys,
        )

    @cached_property
    def admin(self) -> BucketAdmin:
        """The operations that need boto3: bucket setup, versions, presigned URLs."""
        from millrace.store.object.s3.admin import BucketAdmin

        return BucketAdmin(self.address, self._timeout)

    async def connect(self) -> None:
        """Probe the bucket, and find out how it expects tags to be spelled. Once it has passed, this process does not
        probe it again.
        """
        if not self._check:
            return
        proved = _proved.get(self.address)
        if proved is not None:
            self.quotes, self.findings = proved
            return
        await self._prove()
        assert self.findings is not None
        _proved[self.address] = self.quotes, self.findings

    async def connect_for_reading(self) -> None:
        """Do nothing: a probe writes, and a reader does not depend on conditional writes."""
        self._reads_only = True

    async def _prove(self) -> None:
        try:
            self.findings = await probe(self)
        except UnsafeStore as error:
            if error.check != "a swap with the right tag is done":
                raise
            self.quotes = False
            self.findings = await probe(self)
        if not self.findings.versioned and self.address.versioning == "required":
            raise UnsafeStore(
                self.url,
                "the bucket keeps versions",
                "without them there is no history of a job beyond its own record. Turn versioning on (`millrace init` "
                "does), or accept that with ?versioning=optional or MILLRACE_ALLOW_NO_VERSIONING=1.",
            )

    async def close(self) -> None:
        self.__dict__.pop("_store", None)

    # objects

    async def read(self, wants: Sequence[Want]) -> Sequence[Read]:
        return await asyncio.gather(*map(self._read, wants))

    async def _read(self, want: Want, version: str | None = None) -> Read:
        from obstore import get_async
        from obstore.exceptions import NotModifiedError

        options: Any = {}
        if want.unless is not None:
            options["if_none_match"] = self._sent(want.unless)
        if version is not None:
            options["version"] = version
        self.requests["get"] += 1
        try:
            async with self._turn():
                reply = await get_async(self._store, self.address.prefix + want.key, options=options)
                body = bytes(await reply.bytes_async())
        except FileNotFoundError as error:
            no_answer(error, self.url)  # raises if the bucket itself is missing
            return None
        except NotModifiedError:
            return UNCHANGED
        except Exception as error:
            return Unavailable(str(no_answer(error, self.url)))
        tag = reply.meta["e_tag"]
        if not tag:
            return Unavailable("the answer named no ETag")
        return Blob(want.key, body, _bare(tag), _milliseconds(reply.meta["last_modified"]))

    async def write(self, writes: Sequence[Write]) -> Sequence[Answer]:
        return await asyncio.gather(*map(self._write, writes))

    async def _write(self, write: Write) -> Answer:
        from obstore import put_async

        mode: Any = {"e_tag": self._sent(write.expect)} if isinstance(write.expect, str) else _MODES[write.expect]
        self.requests["put"] += 1
        try:
            async with self._turn():
                key = self.address.prefix + write.key
                reply = await put_async(self._store, key, write.body, mode=mode, use_multipart=False)
        except Exception as error:
            return answer_of(error, self.url)
        return WriteReply(_bare(reply["e_tag"]) if reply["e_tag"] else None, versioned=bool(reply["version"]))

    async def delete(self, keys: Sequence[str]) -> None:
        from obstore import delete_async

        self.requests["delete"] += 1
        await self._one(lambda: delete_async(self._store, [self.address.prefix + key for key in keys]))

    async def remove(self, key: str, tag: str) -> bool:
        """Delete the object if it has this tag. Return False if it has changed, or if the bucket keeps no versions.

        The object is deleted by the ids of its versions. Conditional deletes are not reliable, but a version id always
        names the same body.
        """
        if not self.keeps_versions:
            return False
        self.requests["delete"] += 2
        return await asyncio.to_thread(self.admin.remove, key, tag)

    async def list(self, prefix: str, after: str | None, limit: int) -> Listing:
        self.requests["list"] += 1
        start = None if after is None else self.address.prefix + after
        where = (self.address.prefix + prefix).rstrip("/") or None
        # One extra entry shows whether there are more, but beyond a full page it would cost a second request.
        wanted = min(limit + 1, MAX_PAGE)
        objects: Any = self._store
        found = await self._one(lambda: _first_chunk(objects.list(where, offset=start, chunk_size=wanted)))
        cut = len(self.address.prefix)
        entries = [Listed(item["path"][cut:], item["size"], _milliseconds(item["last_modified"])) for item in found]
        return Listing(tuple(entries[:limit]), truncated=len(entries) == wanted)

    async def versions(self, key: str, after: str | None, limit: int) -> VersionPage:
        self.requests["versions"] += 1
        return await asyncio.to_thread(self.admin.versions, key, after, limit)

    async def read_version(self, key: str, version: str) -> Blob | None:
        match await self._read(Want(key), version):
            case Unavailable(reason):
                raise NoAnswer(reason)
            case Blob() as blob:
                return blob
            case _:
                return None

    async def now(self) -> int:
        if self._given_clock is not None:
            return self._given_clock()
        if self.clock.due:
            self.requests["clock"] += 1
            try:
                await asyncio.to_thread(ask, self.address.server, self.clock)
            except OSError as error:
                if self.clock.doubt == float("inf"):
                    raise NoAnswer(f"the server did not return its time: {error}") from None
                self.clock.put_off()
        return self.clock.now()

    def mark(self, prefix: str) -> int:
        return 0

    async def wait_for_change(self, prefix: str, timeout: float, since: int | None = None) -> bool:
        """Sleep until the timeout and return False, because a bucket sends no notifications."""
        await asyncio.sleep(timeout)
        return False

    # one request

    def _turn(self) -> asyncio.Semaphore:
        if self._process != os.getpid():
            raise StoreError(f"{self.url}: connections do not survive a fork; connect in the child process")
        return self._turns

    async def _one(self, request: Callable[[], Awaitable[T]]) -> T:
        try:
            async with self._turn():
                return await request()
        except Exception as error:
            if isinstance(error, StoreError):
                raise
            raise no_answer(error, self.url) from None

    def _sent(self, tag: str) -> str:
        return f'"{tag}"' if self.quotes else tag


_MODES = {Expect.ABSENT: "create", Expect.ANYTHING: "overwrite"}


async def _first_chunk(pages: Any) -> Sequence[Any]:
    async for chunk in pages:
        return chunk  # type: ignore[no-any-return]
    return ()


def _bare(tag: str) -> str:
    return tag.removeprefix("W/").strip('"')


def _milliseconds(moment: datetime) -> int:
    return int(moment.timestamp() * 1_000)
