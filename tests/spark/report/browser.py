"""A real Chromium without a window, spoken to through a pipe: no driver, no port, nothing else to install."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any

from tools.chromium import find

FLAGS = (
    "--headless",
    "--no-sandbox",  # the tests may run as root in a container
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-extensions",
    "--no-first-run",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
PATIENCE = 120.0  # seconds: it only ends a wait for a browser that hangs
# The protocol speaks on descriptors 3 and 4: puts the two that are named there, and becomes the browser.
START = (
    sys.executable,
    "-c",
    "import fcntl, os, sys; reads, writes = (fcntl.fcntl(int(n), fcntl.F_DUPFD, 10) for n in sys.argv[1:3]); "
    "os.dup2(reads, 3); os.dup2(writes, 4); os.execv(sys.argv[3], sys.argv[3:])",
)


class Browser:
    """Commands of the DevTools protocol; events are kept as they come."""

    def __init__(self, into: int, out: int) -> None:
        self._into, self._out = into, out
        self._rest = b""
        self._number = 0
        self.session: str | None = None
        self.events: list[dict[str, Any]] = []

    def do(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self.session is not None:
            message["sessionId"] = self.session
        os.write(self._into, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._number:
            self.events.append(answer)
        assert "error" not in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    def until(self, method: str) -> None:
        """Waits for an event that may have come already."""
        while not any(event.get("method") == method for event in self.events):
            self.events.append(self._next())

    def ask(self, expression: str) -> Any:
        """The value of an expression of JavaScript."""
        answer = self.do("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def size(self, width: int, height: int = 900, phone: bool = False) -> None:
        self.do(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=2 if phone else 1,
            mobile=phone,
        )

    def _next(self) -> dict[str, Any]:
        until = monotonic() + PATIENCE
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._out], [], [], max(0, until - monotonic()))
            assert ready, f"the browser said nothing for {PATIENCE:g} s"
            got = os.read(self._out, 1 << 20)
            assert got, "the browser ended"
            self._rest += got
        first, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(first)
        return message


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser with one empty page, that tells about requests and about its console."""
    program = shutil.which(find()) or ""
    with tempfile.TemporaryDirectory(prefix="millrace-chromium-", ignore_cleanup_errors=True) as profile:
        theirs_in, ours_in = os.pipe()
        ours_out, theirs_out = os.pipe()
        process = subprocess.Popen(
            [*START, str(theirs_in), str(theirs_out), program, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(theirs_in, theirs_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "HOME": profile},
        )
        os.close(theirs_in)
        os.close(theirs_out)
        try:
            browser = Browser(ours_in, ours_out)
            target = browser.do("Target.createTarget", url="about:blank")["targetId"]
            browser.session = browser.do("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Page", "Network", "Runtime", "Log"):
                browser.do(f"{domain}.enable")
            browser.events.clear()
            yield browser
        finally:
            os.close(ours_in)
            process.kill()
            process.wait()
            os.close(ours_out)
