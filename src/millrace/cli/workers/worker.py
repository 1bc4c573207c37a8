"""The options of `millrace worker`. `run.py` runs it, also where typer is not installed."""

from __future__ import annotations

from typing import Annotated

import typer

from millrace.cli.paths import path_option
from millrace.cli.session import CommandSession
from millrace.cli.workers.child_options import ChildOptions
from millrace.cli.workers.object_options import ObjectOptions
from millrace.cli.workers.run import WorkerRun, run_worker

EXAMPLES = {
    "worker": (
        "Examples:\n"
        "  millrace worker --app shop.tasks:app\n"
        "  millrace worker --app shop.tasks:app --queues mail,default --slots 50\n"
        "  millrace worker --app shop.tasks:app --processes 4        one for each core\n"
        "  millrace worker --app shop.tasks:app --burst              stop when no job is ready\n"
        "  millrace worker --app shop.tasks:app --max-jobs 1000      stop after 1,000 jobs\n"
        "  millrace worker --app shop.tasks:app --reload             restart when code changes\n"
        "  millrace worker --app shop.tasks:app --max-memory-per-child 1GiB\n"
        "  millrace worker --app shop.tasks:app --url s3://jobs/shop --shards 0-7",
        "Signals:\n"
        "  SIGTERM, Ctrl-C   claim no more jobs, wait --shutdown-deadline for running jobs, release the rest\n"
        "  a second one      release them at once\n"
        "A worker that stops cleanly exits with 0.",
    )
}


async def worker(
    session: CommandSession,
    queues: Annotated[
        str | None, typer.Option("--queues", "-q", help="Queues to serve (default: those of its tasks).", metavar="A,B")
    ] = None,
    tasks: Annotated[
        str | None, typer.Option("--tasks", help="Tasks to run (default: all of the app).", metavar="A,B")
    ] = None,
    slots: Annotated[
        str | None, typer.Option("--slots", "-s", help="Concurrent jobs per process (default 10).", metavar="N")
    ] = None,
    processes: Annotated[
        str | None, typer.Option("--processes", "-p", help="Number of worker processes (default 1).", metavar="N")
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", "--id", help="Name of the worker; must be unique.", metavar="TEXT")
    ] = None,
    burst: Annotated[bool, typer.Option("--burst", help="Stop when no job is ready.")] = False,
    max_jobs: Annotated[
        int | None, typer.Option("--max-jobs", min=1, help="Stop after this many jobs (per process).", metavar="N")
    ] = None,
    lease: Annotated[
        str | None,
        typer.Option(
            "--lease", help="Lease of jobs for which neither the job nor the task sets one.", metavar="DURATION"
        ),
    ] = None,
    shutdown_deadline: Annotated[
        str | None,
        typer.Option(
            "--shutdown-deadline", help="How long running jobs may take to finish (default 25s).", metavar="DURATION"
        ),
    ] = None,
    grace: Annotated[
        str | None,
        typer.Option("--grace", help="How long aborted handlers may clean up (default 3s).", metavar="DURATION"),
    ] = None,
    unknown_task: Annotated[
        str | None,
        typer.Option(
            "--unknown-task", help="What to do with jobs of unknown tasks (default leave).", metavar="leave|bury"
        ),
    ] = None,
    code_version: Annotated[
        str,
        typer.Option(
            "--code-version", help="Version of your code, for example a commit; shown with the worker.", metavar="TEXT"
        ),
    ] = "",
    alive_file: Annotated[
        str | None, path_option("--alive-file", "FILE", "Touch this file every 5 s, for health checks.", str)
    ] = None,
    log_level: Annotated[
        str | None,
        typer.Option(
            "--log-level",
            help="trace to error, also by module: millrace.store=debug,warn (default info).",
            metavar="LEVEL",
        ),
    ] = None,
    log_format: Annotated[
        str | None, typer.Option("--log-format", help="text or json lines, on stderr (default text).", metavar="FORMAT")
    ] = None,
    reload: Annotated[
        bool, typer.Option("--reload", help="Restart when Python files below this folder change; for development.")
    ] = False,
    supervised: Annotated[bool, typer.Option("--supervised", hidden=True)] = False,
    *,
    children: ChildOptions,
    objects: ObjectOptions,
) -> int:
    """Run jobs of your app until stopped."""
    session = session.with_flags(
        queues=queues,
        tasks=tasks,
        slots=slots,
        processes=processes,
        lease=lease,
        shutdown_deadline=shutdown_deadline,
        grace=grace,
        unknown_task=unknown_task,
        alive_file=alive_file,
        log_level=log_level,
        log_format=log_format,
        **objects.flags(),
    )
    objects.check(session)
    return await run_worker(
        session,
        WorkerRun(name, burst, max_jobs, code_version, reload, supervised, children.options(), children.arguments()),
    )
