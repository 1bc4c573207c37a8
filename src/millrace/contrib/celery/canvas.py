"""Flows of signatures: chain, group and chord. `flow.py` enqueues them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from millrace.contrib.celery.exceptions import NotCovered
from millrace.contrib.celery.signature import Canvas, CelerySignature, many
from millrace.domain.errors import InvalidInput

if TYPE_CHECKING:
    from millrace.contrib.celery.group_result import GroupResult
    from millrace.contrib.celery.result import AsyncResult


class chain(Canvas):
    """Tasks that run one after the other, each with the result of the one before: `chain(add.s(2, 2), add.s(4))`."""

    def __init__(self, *tasks: Any, **options: Any) -> None:
        if len(tasks) == 1 and not isinstance(tasks[0], Canvas):
            tasks = tuple(tasks[0])
        steps = [canvas(task) for task in tasks]
        self.steps: list[Canvas] = []
        for step in steps:
            self._append(step)
        self.options = options

    @property
    def tasks(self) -> tuple[Canvas, ...]:
        """The steps."""
        return tuple(self.steps)

    def _append(self, step: Canvas) -> None:
        if isinstance(step, chain) and not step.options:
            for inner in step.steps:
                self._append(inner)
        elif self.steps and isinstance(self.steps[-1], group):
            self.steps[-1] = chord(self.steps[-1], step)  # what follows a group waits for all of it
        else:
            self.steps.append(step)

    def clone(
        self, args: Iterable[Any] | None = None, kwargs: Mapping[str, Any] | None = None, **options: Any
    ) -> chain:
        """Return a copy. Arguments and options are for the first task; `link` is for the last, `link_error` for all."""
        if not self.steps:
            raise InvalidInput("a chain needs at least one task")
        options = {**self.options, **options}
        links, errbacks = many(options.pop("link", None)), many(options.pop("link_error", None))
        first, *rest = self.steps
        made = chain()
        made.steps = [first.clone(args, kwargs, **options), *(step.clone() for step in rest)]
        for callback in links:
            made.steps[-1].link(callback)
        for errback in errbacks:
            made.steps[-1].on_error(errback)
        return made

    def set(self, **options: Any) -> chain:
        self.options.update(options)
        return self

    def link(self, callback: Canvas) -> chain:
        self.options["link"] = [*many(self.options.get("link")), callback]
        return self

    def on_error(self, errback: CelerySignature) -> chain:
        self.options["link_error"] = [*many(self.options.get("link_error")), errback]
        return self

    link_error = on_error

    def signatures(self) -> list[CelerySignature]:
        return [one for step in self.steps for one in step.signatures()]

    def __repr__(self) -> str:
        return " | ".join(map(repr, self.steps))


class group(Canvas):
    """Tasks that run in parallel: `group(add.s(i, i) for i in range(10))`. The result is the list of their results."""

    def __init__(self, *tasks: Any, **options: Any) -> None:
        if len(tasks) == 1 and not isinstance(tasks[0], Canvas):
            tasks = tuple(tasks[0])
        self.options: dict[str, Any] = options
        self.parts: list[Canvas] = []
        for part in map(canvas, tasks):  # as in Celery, a group in a group is not a list in the list of results
            self.parts += part.parts if isinstance(part, group) and not part.options else [part]

    @property
    def tasks(self) -> list[Canvas]:
        """The tasks."""
        return self.parts

    def clone(
        self, args: Iterable[Any] | None = None, kwargs: Mapping[str, Any] | None = None, **options: Any
    ) -> group:
        """Return a copy. Arguments and options are for every task."""
        options = {**self.options, **options}
        if options.get("link"):
            raise NotCovered("link of a group", "Write chord(group, callback), which runs the callback once")
        made = group()
        made.parts = [part.clone(args, kwargs, **options) for part in self.parts]
        return made

    def set(self, **options: Any) -> group:
        self.options.update(options)
        return self

    def link(self, callback: Canvas) -> group:
        raise NotCovered("link of a group", "Write chord(group, callback), which runs the callback once")

    def on_error(self, errback: CelerySignature) -> group:
        self.options["link_error"] = [*many(self.options.get("link_error")), errback]
        return self

    link_error = on_error

    def signatures(self) -> list[CelerySignature]:
        return [one for part in self.parts for one in part.signatures()]

    def __len__(self) -> int:
        return len(self.parts)

    def __repr__(self) -> str:
        return f"group({', '.join(map(repr, self.parts))})"


class chord(Canvas):
    """A group, and a body that gets the list of its results: `chord((add.s(i, i) for i in range(10)), total.s())`."""

    def __init__(self, header: Any, body: Any = None, **options: Any) -> None:
        self.header = header if isinstance(header, group) else group(header)
        self.body = None if body is None else canvas(body)
        self.options = options

    @property
    def tasks(self) -> list[Canvas]:
        """The tasks of the header."""
        return self.header.parts

    def __call__(self, body: Any = None, **options: Any) -> AsyncResult | GroupResult:
        """Enqueue the chord with this body."""
        if body is not None:
            return chord(self.header, body, **{**self.options, **options})()
        found: AsyncResult | GroupResult = self.apply_async(**options)
        return found

    def whole(self) -> tuple[group, Canvas]:
        """Return header and body. Raises InvalidInput if there is no body."""
        if self.body is None:
            raise InvalidInput("a chord needs a body: chord(header, body), or chord(header)(body)")
        return self.header, self.body

    def clone(
        self, args: Iterable[Any] | None = None, kwargs: Mapping[str, Any] | None = None, **options: Any
    ) -> chord:
        """Return a copy. Arguments and options are for every task of the header; links and task_id for the body."""
        options = {**self.options, **options}
        header, body = self.whole()
        own = {name: options.pop(name) for name in ("link", "link_error", "task_id") if name in options}
        return chord(header.clone(args, kwargs, **options), body.clone(**own))

    def set(self, **options: Any) -> chord:
        self.options.update(options)
        return self

    def link(self, callback: Canvas) -> chord:
        self.whole()[1].link(callback)
        return self

    def on_error(self, errback: CelerySignature) -> chord:
        self.whole()[1].on_error(errback)
        return self

    link_error = on_error

    def signatures(self) -> list[CelerySignature]:
        return [*self.header.signatures(), *([] if self.body is None else self.body.signatures())]

    def __repr__(self) -> str:
        return f"chord({self.header!r}, {self.body!r})"


def joined(first: Canvas, then: Canvas) -> Canvas:
    """Return `first | then`: a chord if `first` is a group, and otherwise a chain."""
    return chord(first, then) if isinstance(first, group) else chain(first, then)


def canvas(value: object) -> Any:
    """Return a signature or a flow. A list of these is a group."""
    if isinstance(value, Canvas):
        return value
    if isinstance(value, list | tuple):
        return group(value)
    raise InvalidInput(f"a flow is made of signatures, such as add.s(2, 2), not of {value!r}")
