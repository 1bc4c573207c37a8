"""`millrace flow`: shows, cancels and replays a flow."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from millrace.app.format import plural
from millrace.cli import exits
from millrace.cli.output import Cell
from millrace.cli.session import CommandSession
from millrace.cli.text import cut
from millrace.domain.errors import InvalidInput, JobNotFound
from millrace.views.flow_view import LISTED_FAILURES, flow_progress, flow_view
from millrace.views.job_view import job_summary

EXAMPLES = {
    "flow": (
        "Examples:\n"
        "  millrace flow summer                    how many of its jobs are done, and which failed\n"
        "  millrace flow summer --replay           run what failed, and what died with it, again\n"
        "  millrace flow summer --cancel           cancel all of its jobs that have not finished",
        "The id of a flow is also that of its last job: millrace status summer --wait 1h waits for the flow.",
    ),
}


async def flow(
    session: CommandSession,
    flow_id: Annotated[str, typer.Argument(metavar="ID", help="The id of a flow.", show_default=False)],
    replay: Annotated[bool, typer.Option("--replay", help="Replay the jobs that failed or died with them.")] = False,
    cancel: Annotated[bool, typer.Option("--cancel", help="Cancel the jobs that have not finished.")] = False,
) -> int:
    """Show how far a flow is, or replay or cancel its jobs.

    Exit 0 unless the flow was not found or has failed. A flow that --cancel has stopped does not count.
    """
    if replay and cancel:
        raise InvalidInput("--replay and --cancel exclude each other; pass one of them")
    async with session.connected() as (app, store):
        handle = app.flows.handle(flow_id)
        try:
            if replay or cancel:
                count = await (handle.replay() if replay else handle.cancel())
                session.output.say(f"{plural(count, 'job')} {'replayed' if replay else 'cancelled or asked to stop'}")
            status = await handle.status()
        except JobNotFound as error:
            session.output.say(f"millrace: {error}")
            return exits.NO
        now = await store.now()
    if session.output.json:
        session.output.document(flow_view(status, partial(job_summary, now=now)))
    else:
        fields: list[tuple[str, Cell]] = [("id", status.id), ("state", status.state)]
        fields.append(("progress", flow_progress(status)))
        fields += [(state, count) for state, count in sorted(status.states.items())]
        for job in status.failed[:LISTED_FAILURES]:
            message = "" if job.error is None else job.error.message
            fields.append(("failed", cut(f"{job.id}: {job.reason or job.state} {message}".strip(), 200)))
        session.output.record(fields)
    return exits.NO if status.state == "failed" and not cancel else exits.OK
