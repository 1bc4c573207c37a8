"""What one command works with: its settings, its output, and an app on the right store."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from millrace.cli.loading import load_app
from millrace.cli.output import Output
from millrace.cli.place import OBJECT_SCHEMES, file_of, require_store, scheme_of
from millrace.domain.errors import InvalidInput, QueueError
from millrace.runtime.app import App
from millrace.runtime.settings import SETTINGS, Settings, load_settings, masked
from millrace.store.protocol import Store

NO_STORE = (
    "no store is named. Give --url sqlite:///jobs.db, or set MILLRACE_URL, or url under [tool.millrace] in "
    "pyproject.toml, or name your app with --app. A new store is made by: millrace init"
)


class Session:
    def __init__(self, flags: dict[str, Any], output: Output) -> None:
        self._flags = flags
        self.settings: Settings = load_settings(flags)
        self.output = output

    def with_flags(self, **flags: Any) -> Session:
        """The same, with further flags of one command; None means that a flag was not given."""
        return Session({**self._flags, **flags}, self.output)

    @property
    def has_app(self) -> bool:
        return self.settings["app"] is not None

    def app(self) -> App:
        """The user's app, on its own store unless a URL was set, which then wins."""
        name = self.settings["app"]
        if name is None:
            raise InvalidInput("no app is named. Give --app module:name, or set MILLRACE_APP")
        folders = () if self.settings.project is None else (self.settings.project,)
        app = load_app(name, folders)
        url = self.settings["url"]
        if url is None:
            if scheme_of(url_of(app)) in OBJECT_SCHEMES and self._tuning():
                app.use(self._tuned(url_of(app)))
        else:
            own = url_of(app)
            app.use(self._tuned(url))
            if not _same(own, url_of(app)):
                where = self.settings.values["url"].where
                self.output.say(f"note: using {url_of(app)} ({where}), not the app's own store {own}")
        return app

    def plain(self) -> App:
        """An app without tasks on the store that is set; the user's code is loaded only to learn of its store."""
        url = self.settings["url"]
        if url is not None:
            return App(self._tuned(url))
        if self.has_app:
            return self.app()
        raise InvalidInput(NO_STORE)

    def _tuning(self) -> dict[str, str]:
        """What a store would find in the environment if flags and pyproject.toml stood there."""
        given = self.settings.as_variables("flag", "pyproject.toml")
        return {one.env: given[one.env] for one in SETTINGS.values() if one.of_object_stores and one.env in given}

    def _tuned(self, url: str) -> str | Store:
        tuning = self._tuning()
        if not tuning or scheme_of(url) not in OBJECT_SCHEMES:
            return url
        from millrace.store.connect import connect

        return connect(url, env=self.environment())

    def environment(self) -> dict[str, str]:
        """The environment as a bucket or a directory shall see it, with what flags and pyproject.toml add to it."""
        return {**os.environ, **self._tuning()}

    @asynccontextmanager
    async def connected(self, app: App | None = None, create: bool = False) -> AsyncIterator[tuple[App, Store]]:
        """The app (by default without tasks) and its store, open. A file that is not there is made only on request."""
        app = self.plain() if app is None else app
        if not create:
            require_store(url_of(app))
        if url_of(app) == "memory://":
            self.output.say("note: memory:// lives in this process only and ends with it")
        async with app:
            yield app, await app.connected()


def url_of(app: App) -> str:
    """Of its store, without a password. A store that cannot be made has no URL; opening it says why."""
    try:
        return app.store.url
    except QueueError:
        return ""


def _same(one: str, other: str) -> bool:
    files = file_of(one), file_of(other)
    if files[0] is not None and files[1] is not None:
        return files[0].resolve() == files[1].resolve()
    return masked(one) == masked(other)
