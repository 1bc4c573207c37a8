"""The hook: from an Airflow connection to an app of Millrace."""

from __future__ import annotations

from typing import Any

from airflow.sdk import BaseHook, Connection

from millrace.app.app import App
from millrace.contrib.jobs import app_at
from millrace.domain.errors import InvalidInput, QueueError


class MillraceHook(BaseHook):
    """The app of the store that a connection of type `millrace` names.

    The URL of the store is the password of the connection, because it may contain one: Airflow encrypts passwords, and
    hides them in logs and in the web interface.
    """

    conn_name_attr = "millrace_conn_id"
    default_conn_name = "millrace_default"
    conn_type = "millrace"
    hook_name = "Millrace"

    def __init__(self, millrace_conn_id: str = default_conn_name) -> None:
        super().__init__()
        self.millrace_conn_id = millrace_conn_id

    def get_conn(self) -> App:
        """Return the app. Use `app.sync`: `MillraceHook().get_conn().sync.jobs.get(…)`."""
        return _app_of(self.get_connection(self.millrace_conn_id))

    async def get_async_conn(self) -> App:
        """Return the app, for code on an event loop, such as a trigger."""
        return _app_of(await self.aget_connection(self.millrace_conn_id))

    def test_connection(self) -> tuple[bool, str]:
        try:
            queues = len(self.get_conn().sync.jobs.count())
        except QueueError as error:
            return False, str(error)
        return True, f"The store answers. Number of queues: {queues}"

    @classmethod
    def get_ui_field_behaviour(cls) -> dict[str, Any]:
        return {
            "hidden_fields": ["host", "schema", "login", "port", "extra"],
            "relabeling": {"password": "Store URL"},
            "placeholders": {"password": "postgresql://user:password@host/database"},
        }


def _app_of(connection: Connection) -> App:
    if not connection.password:
        raise InvalidInput(
            f"connection {connection.conn_id!r} has no store URL. Set the password of the connection to the URL, for "
            "example postgresql://user:password@host/database"
        )
    return app_at(connection.password)
