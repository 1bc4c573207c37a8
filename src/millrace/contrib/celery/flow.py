"""Enqueues signatures and flows: each task becomes a job, which depends on the jobs before it. All of it is one step.

The results that a job gets from its parents are inputs of Millrace: see `app/payloads/inputs.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from millrace.app.flows.compose import KEPT_FOR_CHILDREN
from millrace.app.ids import new_token
from millrace.contrib.celery import states
from millrace.contrib.celery.blocking import blocking
from millrace.contrib.celery.canvas import chain, chord, group
from millrace.contrib.celery.eager import EagerResult
from millrace.contrib.celery.errbacks import LINK_ERROR, call_errback, packed
from millrace.contrib.celery.group_result import GroupResult
from millrace.contrib.celery.options import job_options
from millrace.contrib.celery.request import TaskRequest
from millrace.contrib.celery.result import AsyncResult
from millrace.contrib.celery.runs import run_eagerly
from millrace.contrib.celery.signature import Canvas, CelerySignature, many
from millrace.contrib.celery.values import plain, restored
from millrace.domain.errors import InvalidInput
from millrace.domain.job import Spec

if TYPE_CHECKING:
    from millrace.app.task import Task
    from millrace.contrib.celery.app import Celery

Result = AsyncResult | GroupResult
R = TypeVar("R", AsyncResult, GroupResult, EagerResult)


def send(flow: Canvas) -> Result:
    """Enqueue all jobs of a flow in one step, and return the result object of its last task or group."""
    app = flow.app
    if app.conf.task_always_eager:
        here: Result = run_here(flow)
        return here
    placing = _Placing(app)
    result: Result = placing.place(flow, None)
    if placing.specs:
        specs = list(placing.specs.values())
        blocking(lambda: app.millrace.sync.enqueue(specs))
    return result


class _Placing:
    """Makes the specs of one flow."""

    def __init__(self, app: Celery) -> None:
        self.app = app
        self.specs: dict[str, Spec] = {}
        self._roots: dict[str, str] = {}  # the first job of the chain that a job is in, by id

    def place(self, node: Canvas, before: Result | None, group_id: str | None = None) -> Result:
        """Add the jobs of a node that runs after `before`, and return its result object."""
        match node:
            case CelerySignature():
                return self._place_task(node, before, group_id)
            case chain(steps=steps):
                for step in steps:
                    before = self.place(step, before, group_id)
                assert before is not None, "a chain has a task"
                return before
            case group(parts=parts):
                own = new_token()
                results = [self.place(part, before, own) for part in parts]
                return _after(before, GroupResult(own, results, before))
            case chord():
                header, body = node.whole()
                return self.place(body, self.place(header, before), group_id)
        raise InvalidInput(f"{node!r} is not a part of a flow")

    def _place_task(self, one: CelerySignature, before: Result | None, group_id: str | None) -> AsyncResult:
        options = dict(one.options)
        callbacks, errbacks = many(options.pop("link", None)), many(options.pop("link_error", None))
        given: dict[str, Any] = {"args": plain(one.args), "kwargs": plain(one.kwargs)}
        takes = before is not None and not one.immutable
        if one.known is not None:
            one.known.check_arguments((None, *one.args) if takes else one.args, one.kwargs)
        if before is not None and takes:
            given["parents"] = [self._inputs(before)]
        if about := self._about(options, before, group_id, errbacks):
            given["about"] = about
        task = self._with_options(one, options, before, bool(errbacks))
        spec = task.spec(**given)
        if spec.id in self.specs:
            raise InvalidInput(f"two tasks of one flow have the id {spec.id!r}; give each its own task_id")
        self.specs[spec.id] = spec
        self._roots[spec.id] = self._root_of(before) or spec.id
        result = _after(before, AsyncResult(spec.id, app=self.app, parent=before))
        for callback in callbacks:
            self.place(callback, result)
        return result

    def _with_options(
        self, one: CelerySignature, options: Mapping[str, Any], before: Result | None, has_errbacks: bool
    ) -> Task[..., Any]:
        serializer = None if one.known is None else one.known.serializer or self.app.conf.task_serializer
        changes = job_options(self.app, one.name, options, serializer=serializer)
        if before is not None:
            changes["after"] = _ids(before)
        if has_errbacks:
            changes["on_dead_letter"] = LINK_ERROR
        task = self.app.registered(one.name)
        if not changes:
            return task
        task = task.options(**changes)
        return task if task.at is None else blocking(lambda: self.app.millrace.sync.run(task.due()))

    def _about(
        self, options: Mapping[str, Any], before: Result | None, group_id: str | None, errbacks: list[Any]
    ) -> dict[str, Any]:
        eta = options.get("eta")
        facts = {
            "root": self._root_of(before),
            "parent": before.id if isinstance(before, AsyncResult) else None,
            "group": group_id,
            "eta": None if eta is None else str(eta),
            "errbacks": [packed(one) for one in errbacks],
        }
        return {name: value for name, value in facts.items() if value}

    def _root_of(self, before: Result | None) -> str | None:
        first = None if before is None else next(iter(_ids(before)), None)
        return None if first is None else self._roots[first]

    def _inputs(self, before: Result) -> Any:
        """Return the jobs whose results are an argument of the next one, as a spec or as lists of specs."""
        if isinstance(before, GroupResult):
            return [self._inputs(result) for result in before]
        spec = self.specs[before.id]
        if spec.keep_result == 0:  # as in Celery, a chain passes on a result that is not kept
            spec = self.specs[before.id] = msgspec.structs.replace(spec, keep_result=KEPT_FOR_CHILDREN)
        return spec


def _after(before: Result | None, result: R) -> R:
    if before is not None:
        before.children.append(result)
    return result


def _ids(result: Result) -> list[str]:
    return [leaf.id for leaf in result.leaves()] if isinstance(result, GroupResult) else [result.id]


# ── in this process ───────────────────────────────────────────────────────────────────────────


def run_here(flow: Canvas) -> Any:
    """Run a flow in this process, and return its result object."""
    return _run(flow, None)


def _run(node: Canvas, before: Any) -> Any:
    match node:
        case CelerySignature():
            return _run_task(node, before)
        case chain(steps=steps):
            for step in steps:
                before = _run(step, before)
                if before.failed():
                    break
            return before
        case group(parts=parts):
            return GroupResult(new_token(), [_run(part, before) for part in parts], before)
        case chord():
            header, body = node.whole()
            results = _run(header, before)
            failed = [result for result in results.leaves() if result.failed()]
            return failed[0] if failed else _run(body, results)
    raise InvalidInput(f"{node!r} is not a part of a flow")


def _run_task(one: CelerySignature, before: Any) -> EagerResult:
    task = one.known
    if task is None:
        raise InvalidInput(f"task {one.name!r} is not registered here, so it cannot run in this process")
    options = dict(one.options)
    callbacks, errbacks = many(options.pop("link", None)), many(options.pop("link_error", None))
    job_options(
        task.app, one.name, {name: value for name, value in options.items() if name not in _HERE}, serializer=None
    )
    takes = before is not None and not one.immutable
    args = [before.get(), *one.args] if takes else list(one.args)
    task.check_arguments(args, one.kwargs)
    found = run_eagerly(task, restored(plain(args)), restored(plain(one.kwargs)), options)
    found.parent = before
    if found.state == states.SUCCESS:
        for callback in callbacks:
            _after(found, _run(callback, found))
    else:
        request = TaskRequest(id=found.id, task=one.name, args=args, kwargs=one.kwargs, is_eager=True)
        for errback in errbacks:
            call_errback(errback, request, found.result, found.traceback)
    return found


_HERE = frozenset({"retries", "serializer", "throw"})
