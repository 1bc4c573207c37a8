"""A module that takes its time in a child."""

from __future__ import annotations

import time

from millrace.app import in_child

if in_child.here:
    time.sleep(300)


def work() -> None: ...
