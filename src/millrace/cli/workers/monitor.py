"""`millrace monitor`: recovers lost jobs and repairs leftovers of crashes in a whole store."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
import typer

from millrace.app.format import instant, plural
from millrace.cli import exits
from millrace.cli.output import Cell
from millrace.cli.session import CommandSession
from millrace.cli.text import clock
from millrace.cli.workers.logs import start_logging
from millrace.store.clock import system_clock
from millrace.store.protocol import Store, Sweeping
from millrace.store.read_access import require_write_access
from millrace.worker.monitor import Monitor, MonitorReport, run_monitor
from millrace.worker.signals import on_stop_signal

EXAMPLES = {
    "monitor": (
        "Examples:\n"
        "  millrace monitor --url s3://jobs/shop\n"
        "  millrace monitor --once                        check everything once, then exit\n"
        "  millrace monitor --check-interval 10 --sweep-interval 60\n"
        "  millrace monitor --json | jq -c 'select(.repaired != {})'",
        "Workers do this in the background, unless they run with --no-monitor. Any number of monitors may run.\n"
        "With --app, retried jobs use their task's own backoff function.",
    )
}
log = logging.getLogger("millrace.monitor")


async def monitor(
    session: CommandSession,
    check_interval: Annotated[
        str | None,
        typer.Option(
            "--check-interval",
            help="Seconds between checks for expired leases and lost workers (default 30).",
            metavar="SECONDS",
        ),
    ] = None,
    worker_health_threshold: Annotated[
        str | None,
        typer.Option(
            "--worker-health-threshold",
            help="Seconds without a heartbeat after which a worker is stale (default 60).",
            metavar="SECONDS",
        ),
    ] = None,
    sweep_interval: Annotated[
        str | None,
        typer.Option(
            "--sweep-interval",
            help="Seconds between sweeps (default 300); 0: no sweeps.",
            metavar="SECONDS",
        ),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="One check, one whole sweep, then exit.")] = False,
) -> int:
    """Recover lost jobs and repair what crashes left behind.

    Prints one line for each check that repaired something; with --json, one line for every check. Press Ctrl-C to stop.
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
    printer = _ReportPrinter(session)
    async with session.connected(app) as (_, store):
        require_write_access(store.url, "a monitor")
        threshold = settings["monitor_worker_health_threshold"]
        if once:
            return await _once(printer, store, app.tasks, threshold, settings["monitor_sweep_interval"] > 0)
        swept = settings["monitor_sweep_interval"] if isinstance(store, Sweeping) else 0.0
        sweeps = f"a sweep every {swept:g} s" if swept else "no sweeps"
        log.info("watching %s: a check every %g s, %s", store.url, settings["monitor_check_interval"], sweeps)
        going = asyncio.ensure_future(
            run_monitor(
                store,
                check_interval=settings["monitor_check_interval"],
                worker_health_threshold=threshold,
                sweep_interval=swept,
                on_report=printer.print,
                tasks=app.tasks,
            )
        )
        with on_stop_signal(lambda: _stop(going)):
            await asyncio.wait([going])
        if not going.cancelled():
            going.result()
    printer.sum_up()
    return exits.OK


def _stop(going: asyncio.Future[None]) -> None:
    going.cancel()


async def _once(printer: _ReportPrinter, store: Store, tasks: Mapping[str, Any], threshold: float, sweeps: bool) -> int:
    """Run one check; with `sweeps`, also run one full sweep. Return exit code 0, or 3 if the store could not be
    reached.
    """
    report = await Monitor(store, tasks=tasks, worker_health_threshold=threshold, sweep_interval=0).check()
    if sweeps and report.failed is None and isinstance(store, Sweeping):
        report = msgspec.structs.replace(report, swept=await store.sweep(full=True))
    printer.print(report)
    printer.sum_up()
    return exits.OK if report.failed is None else exits.STORE


class _ReportPrinter:
    """Prints the reports of checks as they arrive, and logs their totals at the end."""

    def __init__(self, session: CommandSession) -> None:
        self._output = session.output
        self._sums: Counter[str] = Counter()
        self._checks = 0

    def print(self, report: MonitorReport) -> None:
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
        repaired = ", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in self._sums.items())
        log.info("%s: %s", plural(self._checks, "check"), repaired or "nothing needed repair")


def repairs_of(report: MonitorReport) -> dict[str, int]:
    """Return the number of repairs by name: recovered jobs, upkeep, and repairs of the sweep."""
    done = {"recovered": report.recovered} if report.recovered else {}
    upkeep = msgspec.to_builtins(report.maintained)
    done |= {name: count for name, count in upkeep.items() if name != "more" and count}
    return done | ({} if report.swept is None else report.swept.repairs)
