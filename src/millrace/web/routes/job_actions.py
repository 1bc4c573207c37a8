"""Actions on one job over HTTP: cancel, replay, archive, unarchive, delete."""

from __future__ import annotations

from millrace.domain.errors import JobNotFound
from millrace.views.bulk import bulk_action
from millrace.web import requests, responses
from millrace.web.operation import Handler, Link, Reply, Request, Routes

ACTIONS = {
    "cancel": "Cancel a waiting job, or ask a running one to stop",
    "replay": "Run a finished job again, with a new budget of attempts",
    "archive": "Hide a finished job from lists",
    "unarchive": "Show an archived job in lists again",
    "delete": "Delete a finished job; this cannot be undone",
}
BODIES = {"cancel": requests.Cancel, "replay": requests.Replay}
LINKS = (Link("job", "getJob", {"id": "$response.body#/id"}),)
routes = Routes()


def _act(verb: str) -> Handler:
    async def act(request: Request) -> Reply:
        job_id = request.path["id"]
        also_running = getattr(request.body, "running", "refuse") == "request"
        action = bulk_action(verb, also_running=also_running, children=getattr(request.body, "children", True))
        [answer] = await action.run(await request.server.app.connected(), [job_id])
        if answer == "not_found":
            raise JobNotFound(job_id)
        request.details |= {"id": job_id, "answer": str(answer)}
        done = answer in action.done
        return Reply(responses.ActionResult(job_id, str(answer), done), 200 if done else 409)

    return act


for verb, summary in ACTIONS.items():
    routes.post(
        f"/api/jobs/{{id}}/{verb}",
        "admin" if verb == "delete" else "operator",
        summary,
        name=f"{verb}Job",
        cli=f"{verb} ID",
        body=BODIES.get(verb),
        body_optional=True,
        responses={200: responses.ActionResult, 409: responses.ActionResult},
        problems=(404,),
        links=() if verb == "delete" else LINKS,
    )(_act(verb))
