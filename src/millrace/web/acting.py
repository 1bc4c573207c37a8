"""Acting on one job over HTTP: cancel, replay, archive, unarchive."""

from __future__ import annotations

from typing import Any

from millrace.domain.check import check_id
from millrace.domain.errors import JobNotFound
from millrace.runtime.deeds import deed_of
from millrace.web import given, taken
from millrace.web.route import Answer, Asked, Link, Route


def _act(verb: str) -> Any:
    async def act(asked: Asked) -> Answer:
        job_id = asked.path["id"]
        check_id("id", job_id)
        deed = deed_of(verb, also_running=getattr(asked.body, "running", "refuse") == "request")
        [answer] = await deed.ask(asked.house.app, [job_id])
        if answer == "not_found":
            raise JobNotFound(job_id)
        asked.facts |= {"id": job_id, "answer": str(answer)}
        done = answer in deed.done
        return Answer({"id": job_id, "answer": str(answer), "done": done}, 200 if done else 409)

    return act


_AFTER = (Link("job", "getJob", {"id": "$response.body#/id"}),)

ROUTES = (
    *(
        Route(
            f"{verb}Job",
            "POST",
            f"/api/jobs/{{id}}/{verb}",
            "operator",
            summary,
            _act(verb),
            cli=f"{verb} ID",
            body=taken.Cancel if verb == "cancel" else None,
            body_optional=True,
            answers={200: given.Acted, 409: given.Acted},
            refusals=(404,),
            links=_AFTER,
        )
        for verb, summary in (
            ("cancel", "Cancel a job that waits; ask one that runs to end"),
            ("replay", "Bring a finished job back, with a new budget of attempts"),
            ("archive", "Put a finished job out of sight"),
            ("unarchive", "Show an archived job again"),
        )
    ),
)
