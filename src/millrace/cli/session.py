"""The session of a command: its settings, its output, and an app with the configured store."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from millrace.app.app import App
from millrace.app.settings import ITS_BUCKET, SETTINGS, ProgramSettings, load_settings, masked
from millrace.cli.loading import load_app
from millrace.cli.output import Output
from millrace.cli.store_url import OBJECT_SCHEMES, file_of, require_store, scheme_of
from millrace.domain.errors import InvalidInput, QueueError
from millrace.store.protocol import Store

NO_STORE = (
    "no store is set. Use --url sqlite:///jobs.db, or set MILLRACE_URL (or S3_BUCKET), or url under [tool.millrace] "
    "in pyproject.toml, or name your app with --app. To create a store: millrace init"
)


class CommandSession:
    def __init__(self, flags: dict[str, Any], output: Output) -> None:
        self._flags = flags
        self.settings: ProgramSettings = load_settings(flags)
        self.output = output

    def with_flags(self, **flags: Any) -> CommandSession:
        """Return a copy of the session with the flags of one command. The value of a flag that was not given is
        None.
        """
        return CommandSession({**self._flags, **flags}, self.output)

    @property
    def has_app(self) -> bool:
        return self.settings["app"] is not None

    @property
    def folders(self) -> tuple[Path, ...]:
        """The folders in which the app is searched before Python's module path."""
        project = self.settings.project
        return (Path.cwd(),) if project is None else (project, Path.cwd())

    def app(self) -> App:
        """Return the user's app. It uses the configured store, or its own store if no URL is configured. Raises
        InvalidInput if no app is configured.
        """
        name = self.settings["app"]
        if name is None:
            raise InvalidInput("no app is set. Use --app module:name, or set MILLRACE_APP")
        folders = () if self.settings.project is None else (self.settings.project,)
        app = load_app(name, folders)
        url = self.settings["url"] or self._bucket_for(app)
        if url is None:
            if scheme_of(url_of(app)) in OBJECT_SCHEMES and self._tuning():
                app.use(self._tuned(url_of(app)))
        else:
            own = url_of(app)
            app.use(self._tuned(url))
            if not _same(own, url_of(app)):
                where = self.settings.values["url"].where or self.settings.values["s3_bucket"].where
                self.output.say(f"note: using {url_of(app)} ({where}), not the app's own store {own}")
        return app

    def _bucket_for(self, app: App) -> str | None:
        """Return a URL for the bucket in the setting `s3_bucket`. Return None if it is not set, or if the app names a
        store.
        """
        return ITS_BUCKET if self.settings["s3_bucket"] is not None and url_of(app) == "memory://" else None

    def plain(self) -> App:
        """Return an app without tasks that uses the configured store. If no URL is configured, return the user's app.
        Raises InvalidInput if there is no app either.
        """
        url = self.settings["url"]
        if url is not None:
            return App(self._tuned(url))
        if self.has_app:
            return self.app()
        raise InvalidInput(NO_STORE)

    def _tuning(self) -> dict[str, str]:
        """Return the object store settings that come from flags or pyproject.toml, as environment variables."""
        variables = self.settings.as_variables("flag", "pyproject.toml")
        return {
            one.env: variables[one.env] for one in SETTINGS.values() if one.of_object_stores and one.env in variables
        }

    def _tuned(self, url: str) -> str | Store:
        tuning = self._tuning()
        if not tuning or scheme_of(url) not in OBJECT_SCHEMES:
            return url
        from millrace.store.connect import connect

        return connect(url, env=self.environment())

    def environment(self) -> dict[str, str]:
        """Return the environment variables, with the object store settings from flags and pyproject.toml added."""
        return {**os.environ, **self._tuning()}

    @asynccontextmanager
    async def connected(self, app: App | None = None, create: bool = False) -> AsyncIterator[tuple[App, Store]]:
        """Open the app and its store, and yield both. Without `app`, open an app without tasks. Raises StoreError if
        the database file or directory is missing, unless `create` is set.
        """
        app = self.plain() if app is None else app
        if not create:
            require_store(url_of(app))
        if url_of(app) == "memory://":
            self.output.say("note: memory:// exists only in this process; its jobs are lost when the process ends")
        async with app:
            yield app, await app.connected()


def url_of(app: App) -> str:
    """Return the URL of the app's store, without a password. Return an empty string if the store cannot be created; the
    reason is reported when the store is opened.
    """
    try:
        return app.store.url
    except QueueError:
        return ""


def _same(one: str, other: str) -> bool:
    files = file_of(one), file_of(other)
    if files[0] is not None and files[1] is not None:
        return files[0].resolve() == files[1].resolve()
    return masked(one) == masked(other)
