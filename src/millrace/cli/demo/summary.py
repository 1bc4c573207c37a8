"""The demo's summary for first-time users: what happened, what was checked, what to try next."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import textwrap
from typing import Any

from millrace.app.format import plural, span
from millrace.cli.output import Output
from millrace.cli.text import cut, safe
from millrace.domain.extras import install

WIDEST = 100


def print_summary(plain: dict[str, Any], output: Output) -> None:
    """Print the summary. On a terminal, it is coloured and cut to the terminal's width; otherwise it is plain text."""
    from rich.console import Console
    from rich.text import Text

    width = shutil.get_terminal_size().columns if output.terminal else 0
    console = Console(highlight=False, markup=False, emoji=False)
    for line, style in _Page(plain, width).lines():
        if output.terminal:
            console.print(Text(line, style=style), soft_wrap=True)
        else:
            print(line)


def print_serve(url: str) -> None:
    """Print how to look at the store of the demo in the dashboard."""
    from millrace.cli.demo.dashboard import has_web

    print("\nTo see what happened in the dashboard:" + ("" if has_web() else " install what it needs, and serve it."))
    if not has_web():
        print(f"  {install('web')}")
    print(f"  {program()} serve --url {shlex.quote(url)}")


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
            f"In {of['took']:.1f} s the shop enqueued {plural(of['accepted'], 'job')}: {of['completed']:,} completed, "
            f"{of['dead']:,} dead, {of['cancelled']:,} cancelled before they started, "
            + (f"{of['live']:,} unfinished." if of["live"] else "none left.")
        )
        self._say(f"{plural(of['retries'], 'failed run was', 'failed runs were')} retried, each after a short delay.")
        self._recovery(of["recovery"])
        self._say(
            f"{plural(of['duplicates'], 'enqueue was a duplicate', 'enqueues were duplicates')} of a job with the "
            f"same key, and did not run. The schedule ticked {plural(of['ticks'], 'time')}."
        )
        answers = of["answers"]
        if answers["count"]:
            self._say(
                f"{plural(answers['count'], 'call')} waited for a result: {_time(answers['p50'])} at the median, "
                f"{_time(answers['p95'])} at the 95th percentile."
            )
        if of["interrupted"]:
            self._say("The demo was interrupted. The unfinished jobs are kept, and a worker can run them.")

    def _recovery(self, recovery: dict[str, Any] | None) -> None:
        if recovery is None:
            return
        held, taken = recovery["held"], recovery["recovered"]
        text = f"Worker {recovery['worker']} was killed with kill -9 while it ran {plural(held, 'job')}. "
        if taken:
            text += (
                f"Their leases of {recovery['lease']:g} s expired. Within {recovery['after']:.1f} s of the kill, other "
                f"workers took them over: {taken} of {held} recovered, {recovery['completed']} completed."
            )
        elif held:
            text += "Their leases have not expired yet; the next worker takes them over."
        self._say(text, "green" if taken == held else "yellow")

    def _times(self) -> None:
        self._title("Queues: jobs, and the seconds they waited and ran")
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
        self._title(f"Dead letters: {plural(self._plain['dead'], 'job')}, each kept with its error")
        for one in causes:
            self._add(self._cut(f"  {one['count']:>3}  {one['task']:<16} {safe(one['error'])}"), "red")
            self._add(f"       {program()} replay --error {one['fingerprint']}", "bright_black")

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
            self._say("A guarantee was broken. Please report it, with the folder named below.", "bold red")

    def _next(self) -> None:
        of, run = self._plain, program()
        example = (of["recovery"] or {}).get("example")
        self._title("The store is kept. Explore it, and replay the dead jobs")
        self._add(f"  export MILLRACE_URL={shlex.quote(of['url'])}", "cyan")
        commands = [
            (f"{run} queues", "the state of each queue"),
            (f"{run} list --status dead", "jobs by state, queue, task, time"),
            (f"{run} dead", "dead letters by cause"),
        ]
        if example is not None:
            commands.append((f"{run} history {example}", "a job that survived the kill"))
        if of["causes"]:
            # In the demo app the cards are valid by now, so replayed payments succeed.
            best = next((one for one in of["causes"] if one["error"].startswith("CardDeclined")), of["causes"][0])
            commands.append(
                (f"{run} replay --error {best['fingerprint']}", f"replay {plural(best['count'], 'dead job')}")
            )
        commands.append((f"{run} worker --app millrace.demo.shop:app --burst", "and run them"))
        longest = max(len(command) for command, _ in commands)
        for command, words in commands:
            if longest + 38 < (self._width or WIDEST):
                self._add(f"  {command:<{longest}}  # {words}", "cyan")
            else:
                self._add(f"  # {words}", "bright_black")
                self._add(f"  {command}", "cyan")
        self._say(f"Its log is in {of['directory']}; remove that folder when you are done.")

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


def program() -> str:
    """Return the command that runs millrace, for examples. After `make demo`, for instance, `millrace` is not on the
    PATH.
    """
    if shutil.which("millrace"):
        return "millrace"
    if os.path.basename(sys.argv[0]) == "millrace":
        return shlex.quote(_near(sys.argv[0]))
    return f"{shlex.quote(_near(sys.executable))} -m millrace"


def _near(path: str) -> str:
    short = os.path.relpath(path)
    return path if short.startswith("..") else short


def _time(seconds: float) -> str:
    return span(seconds * 1000)


def _seconds(value: float | None, size: int) -> str:
    return ("-" if value is None else f"{value:.3f}").rjust(size)
