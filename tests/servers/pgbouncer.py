"""A PgBouncer in transaction mode before a server, for the nightly run: it must be installed (Debian: pgbouncer)."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from tests.servers.ports import free_port
from tests.servers.postgres import START_LIMIT, USER

CONFIGURATION = """
[databases]
* = host={host} port={server_port} user={user}

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {size}
max_client_conn = 300
max_prepared_statements = 0
"""


def program() -> str:
    """Where it is; /usr/sbin is not on everybody's path."""
    found = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin:/opt/homebrew/bin")
    if found is None:
        raise RuntimeError(
            "no pgbouncer for this test: install it (Debian and Ubuntu: apt-get install pgbouncer; macOS: brew install "
            "pgbouncer), or leave the nightly cases out"
        )
    return found


@contextmanager
def pgbouncer(url: str, size: int = 4) -> Iterator[str]:
    """A URL that leads to the same database, over few sessions that change hands after every transaction."""
    where = urlsplit(url)
    port = free_port()
    folder = Path(tempfile.mkdtemp(prefix="millrace-pgbouncer-"))
    file = folder / "pgbouncer.ini"
    text = CONFIGURATION.format(
        host=where.hostname, server_port=where.port or 5432, user=where.username or "postgres", port=port, size=size
    )
    if "max_prepared_statements" in text and not _knows_prepared_statements():
        text = text.replace("max_prepared_statements = 0\n", "")
    file.write_text(text)
    given = {"user": USER, "group": "nogroup"} if os.geteuid() == 0 else {}
    if given:
        for path in (folder, file):
            shutil.chown(path, USER, "nogroup")
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen([program(), str(file)], stdout=log, stderr=log, **given)  # type: ignore[call-overload]
    try:
        limit = time.monotonic() + START_LIMIT
        while not _answers(port):
            if process.poll() is not None or time.monotonic() > limit:
                raise RuntimeError(f"pgbouncer did not start: {(folder / 'log').read_text()[-2000:]}")
            time.sleep(0.05)
        yield f"postgresql://{where.username or 'postgres'}@127.0.0.1:{port}{where.path}"
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(START_LIMIT)
        shutil.rmtree(folder, ignore_errors=True)


def _knows_prepared_statements() -> bool:
    """From 1.21 on it can keep prepared statements for its clients; here it is not to."""
    said = subprocess.run([program(), "--version"], capture_output=True, text=True, check=False).stdout
    version = said.split()[1].split(".") if said.startswith("PgBouncer") else ["0"]
    return [int(part) for part in version[:2] if part.isdigit()] >= [1, 21]


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
    except OSError:
        return False
