"""Find Chromium for the browser tests, or install it if allowed.

python tools/chromium.py      print its path; as root, install Debian's package first if there is none
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
SETTING = "MILLRACE_CHROMIUM"
ADVICE = (
    f"no Chromium was found ({', '.join(NAMES)}). Install one, as root: apt-get install -y chromium; "
    f"or name the program of one: {SETTING}=/path/to/chrome"
)


class NoBrowser(RuntimeError):
    pass


def find() -> str:
    """The path of the browser. Raises NoBrowser, which says how to get one."""
    named = os.environ.get(SETTING)
    if named:
        if shutil.which(named):
            return named
        raise NoBrowser(f"{SETTING}={named}is not a program. Name another one, or leave it unset")
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        raise NoBrowser(ADVICE)
    return found


def install() -> None:
    """Install Debian's package as root. Otherwise does nothing; `find` then says what to do."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return
    print("Installing chromium for the tests that open pages in a browser …", file=sys.stderr, flush=True)
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    wanted = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "chromium"]
    for command in (["apt-get", "update", "-qq"], wanted):
        subprocess.run(command, env=quiet, stdout=subprocess.DEVNULL, check=False)


def main() -> int:
    try:
        print(find())
    except NoBrowser:
        install()
        try:
            print(find())
        except NoBrowser as missing:
            print(f"error: {missing}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
