"""Tests start processes and send them signals, so no signal may be ignored because of how the tests were started.

A shell starts what it puts into the background with SIGINT ignored, nohup does so with SIGHUP, and children inherit it.
"""

from __future__ import annotations

import signal

signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)
