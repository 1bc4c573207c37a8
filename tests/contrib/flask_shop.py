"""A Flask application with a factory, for the tests."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import AsyncIterator, Iterator

from flask import Flask, current_app, g

from millrace import Context, Depends
from millrace.contrib.flask import Millrace

queue = Millrace()
CLOSED: list[str] = []  # the threads in which connections were closed


def get_connection() -> sqlite3.Connection:
    """Return the connection of this app context. SQLite allows its use and its end in this thread only."""
    if "connection" not in g:
        g.connection = sqlite3.connect(":memory:")
    connection: sqlite3.Connection = g.connection
    return connection


@queue.task
def greet(name: str) -> str:
    get_connection()
    return f"{current_app.config['GREETING']} {name}"


@queue.task
async def greet_async(ctx: Context, name: str) -> str:
    return f"{current_app.config['GREETING']} {name} ({ctx.attempt})"


@queue.batch_task(size=3)
def greet_all(names: list[str]) -> list[str]:
    return [f"{current_app.config['GREETING']} {name}" for name in names]


def named() -> Iterator[str]:
    """Provide the name of the application, with a connection that is still open at the clean-up."""
    connection = get_connection()
    yield current_app.name
    assert connection is g.connection


async def greeting() -> AsyncIterator[str]:
    g.number = 1
    yield current_app.config["GREETING"]
    assert g.pop("number") == 1


def model() -> str:
    return f"model of {current_app.name}"


@queue.task
def provided(name: str = Depends(named)) -> str:
    assert get_connection() is g.connection
    return name


@queue.task
async def provided_async(name: str = Depends(named), text: str = Depends(greeting)) -> str:
    return f"{text} {name} {g.number}"


@queue.task
def provided_from_the_loop(text: str = Depends(greeting), name: str = Depends(named)) -> str:
    return f"{text} {name} {'number' in g}"


@queue.task
def provided_for_the_worker(name: str = Depends(model, scope="worker")) -> str:
    return f"{name} for {current_app.name}"


class Greeter:
    """Handlers that are no functions: its objects and their methods."""

    def __call__(self, name: str) -> str:
        return f"{current_app.config['GREETING']} {name}"

    async def later(self, ctx: Context, name: str) -> str:
        return f"{self(name)} ({ctx.attempt})"


class AsyncGreeter:
    async def __call__(self, name: str) -> str:
        return f"{current_app.config['GREETING']} {name}"


greet_by_object = queue.task(name="object")(Greeter())
greet_by_method = queue.task(name="method")(Greeter().later)
greet_by_async_object = queue.task(name="async_object")(AsyncGreeter())


@queue.task(max_attempts=1)
def fails() -> None:
    get_connection()
    raise ValueError("no luck")


def create_app(url: str | None = None) -> Flask:
    app = Flask("flask_shop")
    app.config["GREETING"] = "hello"
    app.config["MILLRACE_URL"] = url or os.environ.get("SHOP_URL")
    queue.init_app(app)

    @app.teardown_appcontext
    def close(error: BaseException | None) -> None:
        connection = g.pop("connection", None)
        if connection is not None:
            connection.close()
            CLOSED.append(threading.current_thread().name)

    @app.post("/greetings/<name>")
    def create(name: str) -> str:
        return greet.sync.enqueue(name).id

    @app.get("/greetings/<name>")
    def at_once(name: str) -> str:
        return greet(name)

    return app
