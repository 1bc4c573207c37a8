"""How Spark's processes open a store: by its URL, for the duration of a task, with an event loop of their own.

A store is not kept open between tasks. Spark kills its Python workers without notice, and anything that a store
reserves for a process (a writer number, a notification slot) would be left behind.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar
from urllib.parse import quote, unquote, urlsplit

from millrace.domain.errors import InvalidInput, StoreError
from millrace.store.connect import connect
from millrace.store.protocol import Store

T = TypeVar("T")
LAST_STEPS = 5.0  # seconds for interrupted work to clean up


class ChosenStore(Protocol):
    """Options that name a store: `url`, `urlEnv` or `urlFile`."""

    def __getitem__(self, name: str, /) -> Any: ...


def url_from(options: ChosenStore) -> str:
    """Return the store's URL: the option `url` itself, the value of the environment variable `urlEnv`, or the content
    of the file `urlFile`.

    The variable and the file are read in this process. Raises InvalidInput if there is no URL or Spark cannot use it,
    and StoreError if the store's file or directory does not exist.
    """
    if options["url"] is not None:
        return _checked(str(options["url"]))
    if options["urlEnv"] is not None:
        name = options["urlEnv"]
        url = os.environ.get(name, "").strip()
        if not url:
            raise InvalidInput(
                f"the environment variable {name} (option urlEnv) is not set in this Spark process. Set it for the "
                f"driver, and for executors by spark.executorEnv.{name}"
            )
        return _checked(url)
    file = options["urlFile"]
    try:
        return _checked(Path(file).read_text("utf-8").strip())
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"the URL's file {file} (option urlFile) cannot be read here: {error}") from None


def _checked(url: str) -> str:
    scheme = url.partition("://")[0].lower()
    if scheme == "memory":
        raise InvalidInput(
            "memory:// lives inside one process, and Spark works in others: they would see an empty store. Use "
            "postgresql://…, redis://…, s3://bucket/prefix, sqlite:////absolute/path.db or file:///directory"
        )
    if scheme == "sqlite" and not unquote(urlsplit(url).path).startswith("//"):
        raise InvalidInput(
            f"{url} names a file relative to the working directory, which is another one in each of Spark's "
            f"processes. Write the absolute path: {absolute_url(url)}"
        )
    _require_place(scheme, url)
    return url


def _require_place(scheme: str, url: str) -> None:
    """Raise StoreError if the store's file or directory is missing, so that a misspelt path does not create an empty
    store.
    """
    path = unquote(urlsplit(url).path)
    if scheme == "sqlite" and not os.path.exists(path[1:]):
        raise StoreError(
            f"there is no database {path[1:]} on this machine. Check the path; every Spark process must see the file"
        )
    if scheme == "file" and not os.path.isdir(path):
        raise StoreError(
            f"there is no directory {path} on this machine. Check the path; every Spark process must see the directory"
        )


def absolute_url(url: str) -> str:
    """Return a URL of the same store that is valid in every working directory, so that it can be passed to other
    processes.
    """
    parts = urlsplit(url)
    if parts.scheme != "sqlite":
        return url
    path = os.path.abspath(unquote(parts.path.removeprefix("/")))
    return f"sqlite:///{quote(path)}" + (f"?{parts.query}" if parts.query else "")


class OpenedStore:
    """Lets blocking code use a store. The store's event loop runs in its own thread, because the caller may be in
    another loop.
    """

    def __init__(self, store: Store, loop: asyncio.AbstractEventLoop) -> None:
        self.store = store
        self._loop = loop

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the store's loop and return its result. On Ctrl-C, cancel it and wait until it has
        ended.
        """
        begun: list[asyncio.Task[Any] | None] = []

        async def noted() -> T:
            begun.append(asyncio.current_task())
            return await coroutine

        answer = asyncio.run_coroutine_threadsafe(noted(), self._loop)
        try:
            return answer.result()
        except BaseException:
            if not answer.done():
                asyncio.run_coroutine_threadsafe(_ended(begun), self._loop).result()
            raise

    def each(self, parts: AsyncIterator[T]) -> Iterator[T]:
        """Yield the items of an async iterator. The next item is fetched while the caller processes the current one."""

        async def step() -> T | None:
            return await anext(parts, None)

        ahead = asyncio.run_coroutine_threadsafe(step(), self._loop)
        try:
            while (part := ahead.result()) is not None:
                ahead = asyncio.run_coroutine_threadsafe(step(), self._loop)
                yield part
        finally:
            ahead.cancel()


async def _ended(begun: Sequence[asyncio.Task[Any] | None]) -> None:
    tasks = [task for task in begun if task is not None]
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=LAST_STEPS)


@contextmanager
def opened(url: str, *, reads: bool = False) -> Iterator[OpenedStore]:
    """Open a store for the duration of the block, and yield it. With `reads`, the store is opened with read access."""
    with _loop_aside() as loop:
        store = connect(url)
        found = OpenedStore(store.for_reading() if reads else store, loop)
        found.run(found.store.connect())
        try:
            yield found
        finally:
            found.run(found.store.close())


@contextmanager
def _loop_aside() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="millrace-spark", daemon=True)
    thread.start()
    try:
        yield loop
    finally:
        asyncio.run_coroutine_threadsafe(loop.shutdown_asyncgens(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
