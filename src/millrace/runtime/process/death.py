"""How a child died, in words for the one who looks at the dead job."""

from __future__ import annotations

import os
import signal
import sys

import msgspec

from millrace.domain.outcome import Failure

SEVERED = 97  # the exit code of a child that finds its connection to the worker closed by its own handler


class Death(msgspec.Struct, frozen=True):
    """`status` is what waiting for the process gave, None when somebody else has waited for it."""

    status: int | None
    memory: int = 0  # bytes, at most at any time
    severed: bool = False  # the worker ended it, since it could not be talked to any more

    @property
    def signal(self) -> str | None:
        """The name of the signal that ended it, if one did."""
        if self.status is None or not os.WIFSIGNALED(self.status):
            return None
        number = os.WTERMSIG(self.status)
        try:
            return signal.Signals(number).name
        except ValueError:
            return f"signal {number}"

    @property
    def code(self) -> int | None:
        """Its exit code, if it exited by itself."""
        return os.WEXITSTATUS(self.status) if self.status is not None and os.WIFEXITED(self.status) else None

    def __str__(self) -> str:
        if self.signal is not None:
            words = f"was killed by {self.signal}"
        elif self.code is not None:
            words = f"exited with code {self.code}"
        else:
            words = "ended, and nobody knows how"
        if self.memory:
            words += f"; it held {self.memory / 2**20:.0f} MiB of memory at its peak"
        return words

    def failure(self, attempt: int) -> Failure:
        hint = ""
        if self.severed or self.code == SEVERED:
            hint = (
                ". Its connection to the worker was broken: a handler must not close or write to files that it has not "
                "opened, nor exec another program in its own place"
            )
        elif self.signal == "SIGKILL":
            hint = ". Nobody here sent that: the system may have run out of memory"
        return Failure("ProcessDied", f"the process of attempt {attempt} {self}{hint}")


def await_death(pid: int) -> Death:
    """Wait for a child, in a thread of its own; whatever it has started and left running ends with it."""
    try:
        if hasattr(os, "waitid"):  # while it is a zombie its number cannot be anybody else's
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
            kill_group(pid, signal.SIGKILL)
        _, status, usage = os.wait4(pid, 0)
    except ChildProcessError:
        return Death(None)
    return Death(status, usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024))


def kill_group(pid: int, number: signal.Signals) -> None:
    """Signal a child and all it has started; one that is gone already is no error."""
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):  # macOS says "permission" of a group of zombies
        return
