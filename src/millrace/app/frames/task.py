"""Frame tasks: batch tasks whose handler takes an Arrow table or a pandas frame with one row per job.

A job is enqueued with the parameters that `row` declares, like a job of any other task. The handler gets them as
columns, after a column `job_id`. Each row has its own outcome.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar, cast

from millrace.app.batch_task import BatchTask, result_type
from millrace.app.duration import Duration, milliseconds
from millrace.app.frames.row import HOW, Row
from millrace.app.frames.tables import FRAMES, Frame, FrameTables, RowUnfit, ends_of
from millrace.app.options import TaskOptions
from millrace.domain.errors import InvalidInput, MissingExtra

if TYPE_CHECKING:
    from millrace.app.app import App
    from millrace.app.handler.context import Context
    from millrace.app.host import Middleware
    from millrace.domain.job import Spec

P = ParamSpec("P")
R = TypeVar("R")
Q = ParamSpec("Q")
D = TypeVar("D")

MAX_ROWS = 1_000


class FrameTask(BatchTask[P, R, Q, D], Generic[P, R, Q, D]):
    """A batch task whose handler takes a table. Calling the task calls the function itself."""

    def __init__(
        self,
        app: App,
        name: str,
        handler: Callable[..., Any],
        options: TaskOptions,
        template: Spec,
        *,
        frame: Frame,
        row: object,
        size: int,
        linger: float,
        layers: tuple[Middleware, ...] = (),
        inherits: bool = True,
    ) -> None:
        self.frame = frame
        self._row = Row(name, row)
        self._tables = FrameTables(name, frame, self._row)
        super().__init__(
            app, name, handler, options, template, size=size, linger=linger, layers=layers, inherits=inherits
        )

    def one(self, name: str, handler: Callable[..., Any], parameters: list[str]) -> Callable[..., Any]:
        """Return a function with the signature of one row, from which the payload of a job is read."""

        def one(**columns: Any) -> Any:
            raise NotImplementedError  # only its signature is read

        vars(one)["__signature__"] = self._row.signature
        one.__annotations__ = {**self._row.kinds, "return": _result(handler)}
        one.__name__ = one.__qualname__ = handler.__name__
        return one

    def item_of(self, job: str, arguments: dict[str, Any]) -> object:
        """Return the job with its row."""
        return job, arguments

    def invoke(self, contexts: list[Context] | None, items: list[Any]) -> Any:
        """Call the handler with a table of the jobs. Return one outcome per job.

        A job whose payload cannot be converted is left out of the table, and its outcome is RowUnfit.
        """
        ids = [job for job, _ in items]
        unfit: dict[int, RowUnfit] = {}
        try:
            table = self._tables.of(ids, [row for _, row in items])
        except MissingExtra:
            raise
        except Exception:
            unfit = self._tables.misfits(ids, [row for _, row in items])
            if not unfit:
                raise
            fit = [index for index in range(len(items)) if index not in unfit]
            if not fit:
                return _now(list(unfit.values())) if self.is_async else list(unfit.values())
            table = self._tables.of([ids[index] for index in fit], [items[index][1] for index in fit])
            contexts = None if contexts is None else [contexts[index] for index in fit]
        call = partial(self.handler, table) if contexts is None else partial(self.handler, contexts, table)
        spread = partial(self._spread, ids, unfit)
        return _later(call, spread) if self.is_async else spread(call())

    def _spread(self, ids: list[str], unfit: Mapping[int, object], value: Any) -> list[object]:
        fit = [job for index, job in enumerate(ids) if index not in unfit]
        ends = iter(ends_of(self.name, fit, value))
        return [unfit[index] if index in unfit else next(ends) for index in range(len(ids))]


async def _later(call: Callable[[], Awaitable[Any]], spread: Callable[[Any], list[object]]) -> list[object]:
    return spread(await call())


async def _now(ends: list[RowUnfit]) -> list[RowUnfit]:
    return ends


def _result(handler: Callable[..., Any]) -> Any:
    """Return the type of one job's result: see `result_type`. If the annotation cannot be resolved, return Any."""
    try:
        return result_type(handler)
    except InvalidInput:
        return Any


class FrameDecorator(Protocol[P]):
    """The decorator that `app.batch_task(frame=…, row=…)` returns."""

    def __call__(self, function: Callable[Q, D], /) -> FrameTask[P, Any, Q, D]: ...


def make_frame_task(
    register: Callable[..., Any],
    function: Callable[..., Any],
    frame: Any,
    row: object,
    max_rows: int | None,
    linger: Duration,
    options: Mapping[str, Any],
) -> FrameTask[..., Any, ..., Any]:
    if frame not in FRAMES:
        raise InvalidInput(f'a batch task takes frame="arrow" or frame="pandas", not {frame!r}')
    if row is None:
        raise InvalidInput(f"a batch task that takes tables needs their columns. {HOW}")
    size = MAX_ROWS if max_rows is None else max_rows
    if type(size) is not int or size < 1:
        raise InvalidInput(f"a table has at least 1 row: max_rows must be a whole number of at least 1, not {size!r}")
    seconds = milliseconds("linger", linger) / 1000
    kind: Any = partial(cast("Any", FrameTask), frame=frame, row=row, size=size, linger=seconds)
    task: FrameTask[..., Any, ..., Any] = register(function, kind=kind, **options)
    return task
