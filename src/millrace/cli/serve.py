"""`millrace serve`: serves the HTTP API, live events, metrics and the dashboard for one store."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from millrace.cli import exits
from millrace.cli.paths import path_option
from millrace.cli.session import CommandSession, url_of
from millrace.cli.workers.logs import start_logging
from millrace.domain.errors import InvalidInput, MissingExtra, StoreError
from millrace.store.read_access import split_access

EXAMPLES = {
    "serve": (
        "Examples:\n"
        "  millrace serve                                   for this machine only: http://127.0.0.1:8321\n"
        "  millrace serve --read-only                       reading only\n"
        "  export MILLRACE_ADMIN_TOKEN=$(python -c 'import secrets; print(secrets.token_urlsafe(32))')\n"
        "  millrace serve --host 0.0.0.0 --allow-host jobs.example.com --audit /var/log/millrace-audit.jsonl\n"
        '  curl -H "Authorization: Bearer $MILLRACE_ADMIN_TOKEN" http://127.0.0.1:8321/api/queues',
        "Tokens are read from MILLRACE_VIEWER_TOKEN, MILLRACE_OPERATOR_TOKEN and MILLRACE_ADMIN_TOKEN, not from the\n"
        "command line, where every user of the machine could read them. With --app, payloads are checked against its\n"
        "tasks before anything is stored.",
    )
}
log = logging.getLogger("millrace.web")


async def serve(
    session: CommandSession,
    host: Annotated[
        str | None, typer.Option("--host", help="Address to listen on (default 127.0.0.1).", metavar="ADDRESS")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option("--port", "-p", min=1, max=65_535, help="Port to listen on (default 8321).", metavar="N"),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-host", help="Additional host name to accept in the Host header; may be repeated.", metavar="NAME"
        ),
    ] = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="Without tokens: allow reading only.")] = False,
    audit: Annotated[
        str | None, path_option("--audit", "FILE", "Append every change to this file, as JSON lines.", str)
    ] = None,
    access_log: Annotated[bool, typer.Option("--access-log", help="Log every request.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check settings and store, then exit.")] = False,
) -> int:
    """Serve the HTTP API, metrics and the dashboard.

    Without a token, the server accepts only local connections; set a token to listen elsewhere. Press Ctrl-C to stop.
    """
    session = session.with_flags(host=host, port=port, allow_hosts=allow_host)
    settings = session.settings
    start_logging(settings["log_level"], settings["log_format"], settings["redact"] or ())
    session.output.log = log
    app = session.app() if session.has_app else session.plain()
    try:
        import uvicorn

        from millrace.web import application
        from millrace.web.guard import is_loopback
    except ModuleNotFoundError as error:
        if error.name != "uvicorn":
            raise
        raise MissingExtra("the HTTP API and the dashboard", "web") from None
    tokens = {role: token for role in ("viewer", "operator", "admin") if (token := settings[f"{role}_token"])}
    if not tokens and not is_loopback(settings["host"]):
        raise InvalidInput(
            f"--host {settings['host']} would open the store to anyone who can reach this machine. Set a token first: "
            "export MILLRACE_ADMIN_TOKEN=$(python -c 'import secrets; print(secrets.token_urlsafe(32))')"
        )
    served = application(
        app,
        tokens=tokens,
        hosts=settings["allow_hosts"] or (),
        local="viewer" if read_only or split_access(url_of(app))[1] else "admin",
        redact=settings["redact"] or (),
        audit=audit,
    )
    config = uvicorn.Config(
        served,
        host=settings["host"],
        port=settings["port"],
        log_config=None,
        access_log=access_log,
        server_header=False,
        proxy_headers=False,  # trust only the address of the connection
        timeout_graceful_shutdown=5,
        lifespan="on",
    )
    async with session.connected(app) as (_, store):
        server = _server(uvicorn.Server, config, served.state.server.shutdown)
        url = f"http://{_bracketed(settings['host'])}:{settings['port']}"
        if dry_run:
            _show_plan(session, store.url, url, sorted(tokens))
            return exits.OK
        session.output.say(f"{store.url} at {url} (Ctrl-C stops it)")
        with _listen_errors(settings["host"], settings["port"]):
            await server.serve()
    return exits.OK


def _show_plan(session: CommandSession, store: str, url: str, roles: list[str]) -> None:
    if session.output.json:
        session.output.document({"store": store, "url": url, "tokens": roles})
        return
    print(url)
    who = f"clients with a token ({', '.join(roles)})" if roles else "this machine"
    session.output.say(f"{store} would be served there, to {who}.")


def _server(kind: type[Any], config: Any, shutdown: Any) -> Any:
    class Server(kind):  # type: ignore[misc]
        """A uvicorn server that ends event streams on shutdown. They would otherwise stay open."""

        def handle_exit(self, sig: int, frame: Any) -> None:
            shutdown.set()
            super().handle_exit(sig, frame)

    return Server(config)


@contextmanager
def _listen_errors(host: str, port: int) -> Iterator[None]:
    """Raise StoreError if uvicorn exits because it cannot listen on this port. uvicorn has already logged the
    reason.
    """
    try:
        yield
    except SystemExit:
        raise StoreError(
            f"cannot listen on {host}:{port}. Another server may use this port; choose another --port"
        ) from None


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
