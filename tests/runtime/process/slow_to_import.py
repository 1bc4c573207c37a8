"""A module that takes its time in a child."""

from __future__ import annotations

import time

from millrace.runtime.process import inside

if inside.here:
    time.sleep(30)


def work() -> None: ...
