"""Read access: a handle of a store that writes nothing, neither when it is opened nor when it reads.

`?access=read` in the URL of a store asks for such a handle, and `for_reading` of a store creates it. The class of the
handle derives from `ReadAccess` and from the class of the store. `ReadAccess` refuses every method that writes. Where
opening the store or reading writes something, the store's own class replaces that part.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import cache
from typing import Any, cast
from urllib.parse import parse_qsl, urlsplit

from millrace.domain.errors import InvalidInput, ReadOnlyStore
from millrace.domain.settings import Limits, QueueSettings, StoreSettings
from millrace.store.base import BaseStore
from millrace.store.protocol import Store, Target, Watch

ACCESS = ("read", "write")


def _refused(method: str) -> Any:
    async def refuse(self: Store, *_args: object, **_options: object) -> None:
        raise ReadOnlyStore(self.url, method)

    return refuse


def _refused_now(method: str) -> Any:
    def refuse(self: Store, *_args: object, **_options: object) -> None:
        raise ReadOnlyStore(self.url, method)

    return refuse


class ReadAccess(BaseStore):
    url: str

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.url = reading_url(self.url)

    enqueue = _refused("enqueue")
    enqueue_behind = _refused("enqueue_behind")
    enqueue_now = _refused_now("enqueue_now")
    enqueue_blocking = _refused_now("enqueue_blocking")
    within = _refused_now("within")
    claim = _refused("claim")
    settle = _refused("settle")
    extend = _refused("extend")
    reclaim = _refused("reclaim")
    wait = _refused("wait")
    wait_for_cancel = _refused("wait_for_cancel")
    cancel = _refused("cancel")
    replay = _refused("replay")
    archive = _refused("archive")
    delete = _refused("delete")
    drain = _refused("drain")
    obliterate = _refused("obliterate")
    maintain = _refused("maintain")
    beat = _refused("beat")
    advance = _refused("advance")
    import_records = _refused("import_records")
    sweep = _refused("sweep")

    async def control(
        self, target: Target, name: str, changes: Mapping[str, Any]
    ) -> QueueSettings | Limits | StoreSettings:
        """Return the settings. Raise ReadOnlyStore if there are changes."""
        if changes:
            raise ReadOnlyStore(self.url, "control")
        return cast("QueueSettings | Limits | StoreSettings", await super().control(target, name, {}))  # type: ignore[misc]

    @asynccontextmanager
    async def watch(self, job_id: str) -> AsyncIterator[Watch]:
        """Yield a watch that polls: a waiter that registers itself would write."""
        async with BaseStore.watch(self, job_id) as watch:
            yield watch

    def for_reading(self: Store) -> Store:
        return self


@cache
def _reading_class(of: type[BaseStore]) -> type[BaseStore]:
    return type(f"ReadOnly{of.__name__}", (ReadAccess, of), {})


def sharing_handle(store: BaseStore) -> Store:
    """Return a handle with read access that shares all attributes of `store`.

    This is enough for a store that writes nothing to open or to read.
    """
    kind: Any = type(store)
    handle: Any = object.__new__(_reading_class(kind))
    handle.__dict__.update(store.__dict__)
    handle.url = reading_url(handle.url)
    return cast(Store, handle)


# ── URLs ──────────────────────────────────────────────────────────────────────────────────────────


def reading_url(url: str) -> str:
    """Return the URL of the same store with `access=read`."""
    plain, _ = split_access(url)
    return f"{plain}{'&' if '?' in plain else '?'}access=read"


def require_write_access(url: str, program: str) -> None:
    """Raise ReadOnlyStore if the URL asks for read access. A program that repeats failed calls checks this first."""
    if split_access(url)[1]:
        raise ReadOnlyStore(url, program)


def split_access(url: str) -> tuple[str, bool]:
    """Return the URL without the option `access`, and whether the option asks for read access."""
    head, mark, query = url.partition("?")
    kept = [part for part in query.split("&") if not part.startswith("access=")]
    if len(kept) == len(query.split("&")):
        return url, False
    wanted = [value for name, value in parse_qsl(urlsplit(url).query, keep_blank_values=True) if name == "access"]
    unknown = [value for value in wanted if value not in ACCESS]
    if unknown:
        raise InvalidInput(f"access is read or write, not {unknown[0]!r}")
    return head + (mark + "&".join(kept) if kept else ""), "read" in wanted
