"""How Spark's processes open a store: by its URL, for as long as a task lasts, with an event loop of their own.

Nothing is kept between tasks. Spark ends its Python workers without a word, so what a store holds for a process (a
writer's number, a slot for being woken) would be left behind.
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
LAST_STEPS = 5.0  # seconds for what was interrupted


class Chosen(Protocol):
    """Options that were read."""

    def __getitem__(self, name: str, /) -> Any: ...


def url_from(options: Chosen) -> str:
    """The URL itself, looked up where this process runs; what it holds is never shown."""
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
            "sqlite:////absolute/path.db, file:///directory or s3://bucket/prefix"
        )
    if scheme == "sqlite" and not unquote(urlsplit(url).path).startswith("//"):
        raise InvalidInput(
            f"{url} names a file relative to the working directory, which is another one in each of Spark's "
            f"processes. Write the absolute path: {absolute_url(url)}"
        )
    _require_place(scheme, url)
    return url


def _require_place(scheme: str, url: str) -> None:
    """A misspelt path must not become an empty store."""
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
    """The same store, whatever the working directory: for a URL that goes to other processes."""
    parts = urlsplit(url)
    if parts.scheme != "sqlite":
        return url
    path = os.path.abspath(unquote(parts.path.removeprefix("/")))
    return f"sqlite:///{quote(path)}" + (f"?{parts.query}" if parts.query else "")


class Opened:
    """A store for code that blocks. Its event loop has a thread of its own: callers may well run in another one."""

    def __init__(self, store: Store, loop: asyncio.AbstractEventLoop) -> None:
        self.store = store
        self._loop = loop

    def run(self, asked: Coroutine[Any, Any, T]) -> T:
        """Whoever is interrupted meanwhile (Ctrl-C) goes on when what was asked has put its things in order."""
        begun: list[asyncio.Task[Any] | None] = []

        async def noted() -> T:
            begun.append(asyncio.current_task())
            return await asked

        answer = asyncio.run_coroutine_threadsafe(noted(), self._loop)
        try:
            return answer.result()
        except BaseException:
            if not answer.done():
                asyncio.run_coroutine_threadsafe(_ended(begun), self._loop).result()
            raise

    def each(self, parts: AsyncIterator[T]) -> Iterator[T]:
        """What an async iterator yields; the next part is fetched while the caller works on one."""

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
def opened(url: str) -> Iterator[Opened]:
    """Connected inside, closed afterwards, also when the caller gives up in the middle."""
    with _loop_aside() as loop:
        found = Opened(connect(url), loop)
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
