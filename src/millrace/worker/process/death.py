"""How a child process died: its exit status, and a message for the job's failure."""

from __future__ import annotations

import os
import signal
import sys

import msgspec

from millrace.domain.outcome import Failure

SEVERED = 97  # the exit code of a child that finds its connection to the worker closed by its own handler


class Death(msgspec.Struct, frozen=True):
    """How a child process ended.

    `status` is its exit status, or None if it is unknown because other code has already waited for the process.
    """

    status: int | None
    memory: int = 0  # peak, in bytes
    severed: bool = False  # the worker killed it, because the connection was broken

    @property
    def signal(self) -> str | None:
        """The name of the signal that killed the process, or None."""
        if self.status is None or not os.WIFSIGNALED(self.status):
            return None
        number = os.WTERMSIG(self.status)
        try:
            return signal.Signals(number).name
        except ValueError:
            return f"signal {number}"

    @property
    def code(self) -> int | None:
        """The exit code of the process; None if it was killed by a signal or its status is unknown."""
        return os.WEXITSTATUS(self.status) if self.status is not None and os.WIFEXITED(self.status) else None

    def __str__(self) -> str:
        if self.signal is not None:
            text = f"was killed by {self.signal}"
        elif self.code is not None:
            text = f"exited with code {self.code}"
        else:
            text = "ended with an unknown exit status"
        if self.memory:
            text += f"; it held {self.memory / 2**20:.0f} MiB of memory at its peak"
        return text

    def failure(self, attempt: int) -> Failure:
        hint = ""
        if self.severed or self.code == SEVERED:
            hint = (
                ". Its connection to the worker was broken: a handler must not close or write to files that it has not "
                "opened, nor exec another program in its own place"
            )
        elif self.signal == "SIGKILL":
            hint = ". The worker did not send this signal: the system may have run out of memory"
        return Failure("ProcessDied", f"the process of attempt {attempt} {self}{hint}")


def await_death(pid: int) -> Death:
    """Wait until a child has exited, kill the processes that it has started, and return how it ended.

    This blocks, so it is called in a separate thread.
    """
    try:
        if hasattr(os, "waitid"):  # while it is a zombie, its process id cannot be reused
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
            kill_group(pid, signal.SIGKILL)
        _, status, usage = os.wait4(pid, 0)
    except ChildProcessError:
        return Death(None)
    return Death(status, usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024))


def kill_group(pid: int, number: signal.Signals) -> None:
    """Send a signal to a child and all processes it has started. Does nothing if the child has ended."""
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):  # macOS raises PermissionError for a group of zombies
        return
