"""A Flask application with a factory, for the tests."""

from __future__ import annotations

import os
import sqlite3
import threading

from flask import Flask, current_app, g

from millrace import Context
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
