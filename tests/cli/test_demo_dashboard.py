"""The demo serves its dashboard and opens it in a browser, where there is one; and says how to serve it afterwards."""

from __future__ import annotations

import asyncio
import json
import socket
import stat
import sys
import webbrowser
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from millrace.cli import exits
from millrace.cli.demo import dashboard as served
from millrace.cli.demo.summary import print_serve
from tests.cli.process import Shell

# A browser that looks once, and notes what it sees.
BROWSER = """#!{python}
import pathlib, sys, urllib.request
page = urllib.request.urlopen(sys.argv[1]).read().decode()
overview = urllib.request.urlopen(sys.argv[1] + "/api/overview").read().decode()
assert "<title>" in page
pathlib.Path({seen!r}).write_text(overview)
"""


def test_the_demo_opens_its_dashboard_and_says_so_and_how_to_serve_it_again(tmp_path: Path):
    seen, script = tmp_path / "seen.json", tmp_path / "browser"
    script.write_text(BROWSER.format(python=sys.executable, seen=str(seen)), "utf-8")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)

    ran = Shell(tmp_path).run(
        "demo", "--seconds", "3", "--dir", "shop", "--no-report", "--open", BROWSER=f"{script} %s"
    )

    assert ran.returncode == exits.OK, ran
    assert "Dashboard: http://127.0.0.1:" in ran.stderr and "(opened in your browser)" in ran.stderr
    assert json.loads(seen.read_text("utf-8"))["store"].endswith("shop.db")
    assert ran.stdout.splitlines()[-1].endswith(f"serve --url sqlite:///{tmp_path}/shop/shop.db")


async def test_the_dashboard_of_the_demo_only_reads_and_takes_another_port_if_need_be(tmp_path: Path):
    def ask(request: Request | str) -> int:
        with urlopen(request) as reply:
            status: int = reply.status
            return status

    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            taken.bind((served.HOST, served.PORT))
        except OSError:
            pass  # somebody else has taken it
        else:
            taken.listen()
        async with served.dashboard(f"sqlite:///{tmp_path}/jobs.db") as address:
            assert not address.endswith(f":{served.PORT}")
            assert await asyncio.to_thread(ask, f"{address}/api/overview") == 200
            change = Request(f"{address}/api/queues/mail/pause", method="POST", headers={"Origin": address})
            with pytest.raises(HTTPError, match="403"):
                await asyncio.to_thread(ask, change)


def test_without_a_display_no_browser_is_opened(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "platform", "linux")
    in_a_terminal, with_a_window = webbrowser.GenericBrowser("w3m"), webbrowser.BackgroundBrowser("firefox")
    monkeypatch.setattr(webbrowser, "get", lambda: in_a_terminal)

    assert served.browser({}) is None
    assert served.browser({"DISPLAY": ":0"}) is None
    assert served.browser({"BROWSER": "w3m"}) is in_a_terminal  # it was asked for
    monkeypatch.setattr(webbrowser, "get", lambda: with_a_window)
    assert served.browser({}) is None
    assert served.browser({"DISPLAY": ":0"}) is served.browser({"WAYLAND_DISPLAY": "wayland-0"}) is with_a_window


def test_without_the_web_extra_the_last_lines_say_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    for name in ("uvicorn", "starlette"):
        monkeypatch.setitem(sys.modules, name, None)
    assert not served.has_web()

    print_serve("sqlite:///shop.db")

    *_, install, serve = capsys.readouterr().out.splitlines()
    assert install.strip().startswith("pip install 'starlette") and serve.endswith("serve --url sqlite:///shop.db")
