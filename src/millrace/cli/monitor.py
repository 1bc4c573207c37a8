"""`millrace monitor`: recover and repair for a whole store, and say what was put right (O-22, O-31)."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
import typer

from millrace.cli import exits
from millrace.cli.logs import start_logging
from millrace.cli.output import Cell
from millrace.cli.session import Session
from millrace.cli.text import clock, instant, plural
from millrace.runtime.monitor import Monitor, MonitorReport, run_monitor
from millrace.runtime.signals import heard_by
from millrace.store.clock import system_clock
from millrace.store.protocol import Store, Sweeping

EXAMPLES = {
    "monitor": (
        "Examples:\n"
        "  millrace monitor --url s3://jobs/shop\n"
        "  millrace monitor --once                        one look at everything, then exit\n"
        "  millrace monitor --check-interval 10 --sweep-interval 60\n"
        "  millrace monitor --json | jq -c 'select(.repaired != {})'",
        "Workers do this beside their jobs, unless they run with --no-monitor. Any number of monitors may run.\n"
        "With --app, jobs that are tried again wait as their tasks' own backoff says, if that is a function.",
    )
}
log = logging.getLogger("millrace.monitor")


async def monitor(
    session: Session,
    check_interval: Annotated[
        str | None,
        typer.Option(
            "--check-interval", help="Between looks for expired leases, silent workers (30).", metavar="SECONDS"
        ),
    ] = None,
    worker_health_threshold: Annotated[
        str | None,
        typer.Option("--worker-health-threshold", help="A worker silent for longer is stale (60).", metavar="SECONDS"),
    ] = None,
    sweep_interval: Annotated[
        str | None,
        typer.Option(
            "--sweep-interval", help="Between sweeps for what crashes left (300); 0: none.", metavar="SECONDS"
        ),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="One check, one whole sweep, then exit.")] = False,
) -> int:
    """Recover lost jobs and repair what crashes left behind.

    One line for each check that put something right; with --json one for every check. Ctrl-C ends it.
    """
    session = session.with_flags(
        monitor_check_interval=check_interval,
        monitor_worker_health_threshold=worker_health_threshold,
        monitor_sweep_interval=sweep_interval,
    )
    settings = session.settings
    start_logging(settings["log_level"], settings["log_format"], settings["redact"] or ())
    session.output.log = log
    app = session.app() if session.has_app else session.plain()
    teller = _Teller(session)
    async with session.connected(app) as (_, store):
        threshold = settings["monitor_worker_health_threshold"]
        if once:
            return await _once(teller, store, app.tasks, threshold, settings["monitor_sweep_interval"] > 0)
        swept = settings["monitor_sweep_interval"] if isinstance(store, Sweeping) else 0.0
        sweeps = f"a sweep every {swept:g} s" if swept else "no sweeps"
        log.info("watching %s: a check every %g s, %s", store.url, settings["monitor_check_interval"], sweeps)
        going = asyncio.ensure_future(
            run_monitor(
                store,
                check_interval=settings["monitor_check_interval"],
                worker_health_threshold=threshold,
                sweep_interval=swept,
                on_report=teller.tell,
                tasks=app.tasks,
            )
        )
        with heard_by(lambda: _stop(going)):
            await asyncio.wait([going])
        if not going.cancelled():
            going.result()
    teller.sum_up()
    return exits.OK


def _stop(going: asyncio.Future[None]) -> None:
    going.cancel()


async def _once(teller: _Teller, store: Store, tasks: Mapping[str, Any], threshold: float, sweeps: bool) -> int:
    """Exit 1 when the store could not be asked; what was repaired is no failure."""
    report = await Monitor(store, tasks=tasks, worker_health_threshold=threshold, sweep_interval=0).check()
    if sweeps and report.failed is None and isinstance(store, Sweeping):
        report = msgspec.structs.replace(report, swept=await store.sweep(full=True))
    teller.tell(report)
    teller.sum_up()
    return exits.OK if report.failed is None else exits.STORE


class _Teller:
    """Reports as they come, and the sums of them in the end."""

    def __init__(self, session: Session) -> None:
        self._output = session.output
        self._sums: Counter[str] = Counter()
        self._checks = 0

    def tell(self, report: MonitorReport) -> None:
        repaired = repairs_of(report)
        self._sums.update(repaired)
        self._checks += 1
        now = system_clock()
        if self._output.json:
            self._output.line(
                {
                    "at": instant(now),
                    "repaired": repaired,
                    "looked_at": None if report.swept is None else report.swept.looked_at,
                    "stale_workers": list(report.stale_workers),
                    "failed": report.failed,
                }
            )
        elif repaired:
            when = clock(now) if self._output.terminal else instant(now)
            cells: list[Cell] = [when, *(f"{name.replace('_', ' ')} {count:,}" for name, count in repaired.items())]
            self._output.row(cells)

    def sum_up(self) -> None:
        told = ", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in self._sums.items())
        log.info("%s: %s", plural(self._checks, "check"), told or "nothing was to be put right")


def repairs_of(report: MonitorReport) -> dict[str, int]:
    """What was put right, by name: jobs recovered, upkeep that was due, and what the sweep repaired."""
    done = {"recovered": report.recovered} if report.recovered else {}
    upkeep = msgspec.to_builtins(report.maintained)
    done |= {name: count for name, count in upkeep.items() if name != "more" and count}
    return done | ({} if report.swept is None else report.swept.repairs)
