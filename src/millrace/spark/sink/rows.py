"""Turns each row into a spec, with the payload, options and id of the job, or into the reason why the row is
invalid.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa

from millrace.app.duration import milliseconds
from millrace.app.payloads.jsonable import may_be_deep, refuse_unsafe
from millrace.domain.errors import InvalidInput, PayloadInvalid, QueueError
from millrace.domain.job import Spec
from millrace.domain.rules.check import MAX_PAYLOAD, Checked, check_spec
from millrace.spark.options import SourceOptions, duration
from millrace.spark.sink.ids import Ordinals, Scope, id_digest
from millrace.spark.sink.plan import SinkPlan
from millrace.spark.sink.tasks import Target, Targets, rows_as_dicts
from millrace.spark.sink.values import unfit_numbers, values_of

_json = msgspec.json.Encoder().encode
_msgpack = msgspec.msgpack.Encoder().encode
_replace = msgspec.structs.replace

Columns = dict[str, list[Any]]


class Made(msgspec.Struct):
    """The result for a chunk of rows. `unfit` maps the position of each invalid row to the reason."""

    specs: list[Spec]
    unfit: dict[int, str]


class RowMaker:
    """Builds specs for one partition of one write."""

    def __init__(self, options: SourceOptions, plan: SinkPlan, scope: Scope, targets: Targets) -> None:
        self._plan = plan
        self._scope = scope
        self._targets = targets
        self._task: str | None = options["task"]
        self._ordinals = Ordinals()
        fields = [(f"f{at}", Any) for at in range(len(plan.payload))]
        renamed = {field: name for (field, _), name in zip(fields, plan.payload, strict=True)}
        self._row = msgspec.defstruct("Row", fields, rename=renamed, gc=False)  # the fastest way to encode an object

    def make(self, rows: pa.RecordBatch, now: int) -> Made:
        """Return the specs of a chunk, and its invalid rows. `now` is the store's time; delays of jobs with a start
        time are computed from it.
        """
        columns = {name: values_of(rows.column(name)) for name in self._plan.used}
        unfit = self._unfit_numbers(rows, columns)
        drafts: list[Spec | None] = [None] * rows.num_rows
        for name, places in self._by_task(columns, rows.num_rows, unfit).items():
            try:
                target = self._targets[name]
            except InvalidInput as unknown:
                unfit.update(dict.fromkeys(places, str(unknown)))
                continue
            self._draft(target, places, columns, drafts, unfit)
        if self._plan.roles:
            self._set_fields(columns, drafts, unfit, now)
        self._refuse_null_ids(columns, unfit)
        return Made(self._named(columns, drafts, unfit), dict(sorted(unfit.items())))

    def _by_task(self, columns: Columns, size: int, unfit: dict[int, str]) -> dict[str, Sequence[int]]:
        if self._plan.task is None:
            return {} if self._task is None else {self._task: range(size)}
        found: defaultdict[str, list[int]] = defaultdict(list)
        for place, name in enumerate(columns[self._plan.task]):
            chosen = self._task if name is None else name
            if chosen is None:
                unfit[place] = f"column {self._plan.task!r} names no task, and there is no option task"
            else:
                found[chosen].append(place)
        return dict(found)

    # ── payloads ──────────────────────────────────────────────────────────────────────────────

    def _unfit_numbers(self, rows: pa.RecordBatch, columns: Columns) -> dict[int, str]:
        """Return the rows with numbers that JSON cannot represent, such as NaN, with the reason. With an app, return
        nothing: the app's task checks the payload, and its serde may support such numbers.
        """
        found: dict[int, str] = {}
        for name in () if self._targets.by_app else self._plan.payload:
            found |= unfit_numbers(name, rows.column(name), columns[name])
        return found

    def _draft(
        self,
        target: Target,
        places: Sequence[int],
        columns: Columns,
        drafts: list[Spec | None],
        unfit: dict[int, str],
    ) -> None:
        """Build a spec without id for each row in `places`, and put it into `drafts`. For an invalid row, put the
        reason into `unfit`.
        """
        if self._plan.json is not None:
            texts = columns[self._plan.json]
            made = _each(lambda place: self._of_text(target, texts[place]), places)
        elif target.task is not None:
            chosen = [_picked(columns[name], places) for name in self._plan.payload]
            made = target.specs(rows_as_dicts(self._plan.payload, chosen, target) if chosen else [{} for _ in places])
        else:
            made = self._of_columns(target, places, columns)
        for place, draft in zip(places, made, strict=True):
            if isinstance(draft, str):
                unfit[place] = draft
            else:
                drafts[place] = draft

    def _of_text(self, target: Target, text: str | None) -> Spec | str:
        values = _object(f"column {self._plan.json!r}", text)
        if target.task is not None:
            return target.specs([values])[0]
        assert text is not None
        return _of_size(target, text.encode())

    def _of_columns(self, target: Target, places: Sequence[int], columns: Columns) -> list[Spec | str]:
        names = self._plan.payload
        chosen = [_picked(columns[name], places) for name in names]
        payloads = list(map(_json, map(self._row, *chosen))) if names else [b"{}"] * len(places)
        template = target.template
        made: list[Spec | str] = [_replace(template, payload=payload) for payload in payloads]
        if payloads and len(max(payloads, key=len)) > MAX_PAYLOAD:
            made = [_of_size(target, payload) for payload in payloads]
        return made

    # ── options from columns ─────────────────────────────────────────────────────────────────

    def _set_fields(self, columns: Columns, drafts: list[Spec | None], unfit: dict[int, str], now: int) -> None:
        roles = {role: columns[name] for role, name in self._plan.roles.items() if role != "task"}
        for place, draft in enumerate(drafts):
            if draft is None or place in unfit:
                continue
            try:
                given = {role: values[place] for role, values in roles.items() if values[place] is not None}
                fields = dict(_READ[role](self._plan.roles[role], value, now) for role, value in given.items())
                if "key" in fields:
                    fields |= self._targets.of_keys
                drafts[place] = _replace(draft, **fields)
                check_spec(_replace(draft, **fields))
            except QueueError as error:
                drafts[place], unfit[place] = None, str(error)

    def _refuse_null_ids(self, columns: Columns, unfit: dict[int, str]) -> None:
        for name in self._plan.ids:
            if None in columns[name]:
                for place, value in enumerate(columns[name]):
                    if value is None:
                        unfit.setdefault(place, f"column {name!r} is null, but idColumns needs it to identify the row")

    # ── ids ───────────────────────────────────────────────────────────────────────────────────

    def _named(self, columns: Columns, drafts: list[Spec | None], unfit: dict[int, str]) -> list[Spec]:
        """Return the specs of the valid rows, with their ids. Invalid rows are not counted as equal rows, so that the
        ids of other rows do not depend on them.
        """
        places = [place for place in range(len(drafts)) if place not in unfit]
        fit = [draft for place, draft in enumerate(drafts) if place not in unfit and draft is not None]
        token = self._scope.token
        if self._plan.ids:
            identities = zip(*(_picked(columns[name], places) for name in self._plan.ids), strict=True)
            digests = [id_digest(draft.task, values) for draft, values in zip(fit, identities, strict=True)]
            ordinals = self._ordinals.next(digests) or [0] * len(digests)
            return Checked(
                _replace(draft, id=digest.hex(), token=f"{token}-{ordinal}")
                for draft, digest, ordinal in zip(fit, digests, ordinals, strict=True)
            )
        digests = self._scope.digests(self._contents(columns, fit, places))
        ordinals = self._ordinals.next(digests) or [0] * len(digests)
        ids = map(self._scope.id, digests, ordinals)
        return Checked(_replace(draft, id=name, token=token) for draft, name in zip(fit, ids, strict=True))

    def _contents(self, columns: Columns, fit: list[Spec], places: Sequence[int]) -> list[bytes]:
        """Return for each row the bytes from which its id is derived. This is the payload, if only the payload
        determines the job. If there is an app, or if other columns set options, it is the input values, because a later
        version of the app may encode the payload differently.
        """
        if not self._plan.roles and not self._targets.by_app:
            return [draft.payload for draft in fit]
        chosen = [_picked(columns[name], places) for name in self._plan.used]
        return list(map(_msgpack, zip(*chosen, strict=True))) if chosen else [b""] * len(places)


def _picked(values: list[Any], places: Sequence[int]) -> list[Any]:
    return values if len(places) == len(values) else [values[place] for place in places]


def _each(make: Callable[[int], Spec | str], places: Sequence[int]) -> list[Spec | str]:
    made: list[Spec | str] = []
    for place in places:
        try:
            made.append(make(place))
        except PayloadInvalid as error:
            made.append(str(error))
    return made


def _object(where: str, text: str | None) -> dict[str, Any]:
    if text is None:
        raise PayloadInvalid(f"{where} is null; a payload is a JSON object, at least {{}}")
    try:
        values = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise PayloadInvalid(f"{where} is not JSON: {error}") from None
    if not isinstance(values, dict):
        raise PayloadInvalid(f"{where} must be a JSON object with the task's parameters, not a {type(values).__name__}")
    if may_be_deep(text.encode(), json=True):
        refuse_unsafe(where, values, finite=True, keys=False)
    return values


def _of_size(target: Target, payload: bytes) -> Spec | str:
    if len(payload) > MAX_PAYLOAD:
        return (
            f"the payload is {len(payload):,} bytes; at most {MAX_PAYLOAD:,} are taken. Keep big data elsewhere and "
            "pass a reference to it"
        )
    return _replace(target.template, payload=payload)


def _delay(column: str, value: Any, _: int) -> tuple[str, Any]:
    where = f"column {column!r}"
    if isinstance(value, str):
        value = duration(where, value)
    return "delay", milliseconds(where, float(value) if isinstance(value, Decimal) else value)


def _run_at(_: str, value: datetime, now: int) -> tuple[str, Any]:
    """Return the delay until a start time; 0 for a time in the past. `now` is the store's time, because clocks may
    differ.
    """
    return "delay", max(0, round(value.timestamp() * 1000) - now)


def _as_it_is(field: str) -> Callable[[str, Any, int], tuple[str, Any]]:
    return lambda _column, value, _now: (field, value)


def _as_text(field: str) -> Callable[[str, Any, int], tuple[str, Any]]:
    return lambda _column, value, _now: (field, str(value))


_READ: dict[str, Callable[[str, Any, int], tuple[str, Any]]] = {
    "queue": _as_it_is("queue"),
    "priority": _as_it_is("priority"),
    "delay": _delay,
    "run_at": _run_at,
    "group": _as_text("group"),
    "key": _as_text("key"),
    "headers": _as_it_is("headers"),
}
