"""The demo's summary, for somebody who has never seen a job queue: what happened, what was checked, what to try."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import textwrap
from typing import Any

from millrace.cli.output import Output
from millrace.cli.text import cut, plural, safe, span

WIDEST = 100


def tell(plain: dict[str, Any], output: Output) -> None:
    """On a terminal with colours and cut to its width; elsewhere plain, and nothing is cut."""
    from rich.console import Console
    from rich.text import Text

    width = shutil.get_terminal_size().columns if output.terminal else 0
    console = Console(highlight=False, markup=False, emoji=False)
    for line, style in _Page(plain, width).lines():
        if output.terminal:
            console.print(Text(line, style=style), soft_wrap=True)
        else:
            print(line)


class _Page:
    def __init__(self, plain: dict[str, Any], width: int) -> None:
        self._plain = plain
        self._width = width
        self._lines: list[tuple[str, str]] = []

    def lines(self) -> list[tuple[str, str]]:
        self._story()
        self._times()
        self._deaths()
        self._audit()
        self._next()
        return self._lines

    # ── its parts ─────────────────────────────────────────────────────────────────────────────

    def _story(self) -> None:
        of = self._plain
        self._title("What happened")
        self._say(
            f"In {of['took']:.1f} s the shop put in {plural(of['accepted'], 'job')}: {of['completed']:,} completed, "
            f"{of['dead']:,} dead, {of['cancelled']:,} cancelled before it was their turn, "
            + (f"{of['live']:,} still to do." if of["live"] else "none left.")
        )
        self._say(
            f"{plural(of['retries'], 'failed run was', 'failed runs were')} tried again, each after a short pause."
        )
        self._recovery(of["recovery"])
        self._say(
            f"{plural(of['duplicates'], 'enqueue was a duplicate', 'enqueues were duplicates')} of a job under the "
            f"same key: answered, not run. The schedule ticked {plural(of['ticks'], 'time')}."
        )
        answers = of["answers"]
        if answers["count"]:
            self._say(
                f"{plural(answers['count'], 'request')} waited for the result: {_time(answers['p50'])} in the median, "
                f"{_time(answers['p95'])} for 95 %."
            )
        if of["interrupted"]:
            self._say("It was interrupted; what was left to do is kept, and a worker would go on with it.")

    def _recovery(self, recovery: dict[str, Any] | None) -> None:
        if recovery is None:
            return
        held, taken = recovery["held"], recovery["recovered"]
        text = f"Worker {recovery['worker']} was killed with -9 in the middle of {plural(held, 'job')}. "
        if taken:
            text += (
                f"Their leases of {recovery['lease']:g} s ran out, and {recovery['after']:.1f} s after the kill the "
                f"last of them was with another worker: {taken} of {held} recovered, {recovery['completed']} completed."
            )
        elif held:
            text += "Their leases have not run out yet; the next worker takes them over."
        self._say(text, "green" if taken == held else "yellow")

    def _times(self) -> None:
        self._title("Queues: jobs, and seconds that they waited and ran")
        names = ("jobs", "done", "dead", "retries")
        self._add(
            "  queue    " + "".join(name.rjust(8) for name in names) + "  waited 50 %   95 %  ran 50 %   95 %", "bold"
        )
        for queue in self._plain["queues"]:
            counts = (queue["accepted"], queue["completed"], queue["dead"], queue["retries"])
            waited, ran = queue["waited"], queue["ran"]
            numbers = "".join(f"{count:,}".rjust(8) for count in counts)
            times = f"{_seconds(waited['p50'], 13)}{_seconds(waited['p95'], 7)}"
            times += f"{_seconds(ran['p50'], 10)}{_seconds(ran['p95'], 7)}"
            self._add(f"  {queue['queue']:<9}{numbers}{times}")

    def _deaths(self) -> None:
        causes = self._plain["causes"]
        if not causes:
            return
        self._title(f"Dead letters: {plural(self._plain['dead'], 'job')}, kept with the error that each died of")
        for one in causes:
            self._add(self._cut(f"  {one['count']:>3}  {one['task']:<16} {safe(one['error'])}"), "red")
            self._add(f"       {self._program} replay --error {one['fingerprint']}", "bright_black")

    def _audit(self) -> None:
        audit = self._plain["audit"]
        checks = audit["checks"]
        self._title(f"Checked in the recorded history of all {self._plain['accepted']:,} jobs")
        width = max(len(check["name"]) for check in checks) + 2
        for check in checks:
            mark, style = ("yes", "green") if check["ok"] else ("NO ", "bold red")
            text = f"  {mark}  {check['name']:<{width}}{safe(check['text'])}"
            for line in self._wrapped(text, 7 + width, most=120):
                self._add(line, style)
        if not audit["ok"]:
            self._say("A promise was broken. Please report it, with the folder named below.", "bold red")

    def _next(self) -> None:
        of, run = self._plain, self._program
        example = (of["recovery"] or {}).get("example")
        self._title("Now you. The store is kept: look around in it, and bring the dead back")
        self._add(f"  export MILLRACE_URL={shlex.quote(of['url'])}", "cyan")
        commands = [
            (f"{run} queues", "how each queue stands"),
            (f"{run} list --status dead", "jobs by state, queue, task, time"),
            (f"{run} dead", "dead letters by cause"),
        ]
        if example is not None:
            commands.append((f"{run} history {example}", "a job that survived the kill"))
        if of["causes"]:
            # The customers have other cards by now, so those would succeed.
            best = next((one for one in of["causes"] if one["error"].startswith("CardDeclined")), of["causes"][0])
            commands.append((f"{run} replay --error {best['fingerprint']}", f"give {best['count']} another chance"))
        commands.append((f"{run} worker --app millrace.demo.shop:app --burst", "and run them"))
        longest = max(len(command) for command, _ in commands)
        for command, words in commands:
            if longest + 38 < (self._width or WIDEST):
                self._add(f"  {command:<{longest}}  # {words}", "cyan")
            else:
                self._add(f"  # {words}", "bright_black")
                self._add(f"  {command}", "cyan")
        self._say(f"Its log is in {of['directory']}; remove that folder when you are done.")

    @property
    def _program(self) -> str:
        """As it can be typed here: `make demo` does not put it on the PATH."""
        if shutil.which("millrace"):
            return "millrace"
        if os.path.basename(sys.argv[0]) == "millrace":
            return shlex.quote(_near(sys.argv[0]))
        return f"{shlex.quote(_near(sys.executable))} -m millrace"

    # ── lines ─────────────────────────────────────────────────────────────────────────────────

    def _title(self, text: str) -> None:
        self._add("")
        self._add(text, "bold")

    def _say(self, text: str, style: str = "") -> None:
        for line in self._wrapped(f"  {text}", 2):
            self._add(line, style)

    def _add(self, line: str, style: str = "") -> None:
        self._lines.append((line, style))

    def _wrapped(self, text: str, indent: int, most: int = WIDEST) -> list[str]:
        width = min(self._width or most, most) - 1
        return textwrap.wrap(
            text, width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
        )

    def _cut(self, text: str) -> str:
        return cut(text, self._width - 1) if self._width else text


def _near(path: str) -> str:
    short = os.path.relpath(path)
    return path if short.startswith("..") else short


def _time(seconds: float) -> str:
    return span(seconds * 1000)


def _seconds(value: float | None, size: int) -> str:
    return ("-" if value is None else f"{value:.3f}").rjust(size)
