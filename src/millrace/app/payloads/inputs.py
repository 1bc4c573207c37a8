"""Inputs: the results of parents as arguments of a job, as in `album.spec([first.output, second.output])`.

The payload of such a job has no value for these parameters. A header says which parents' results belong there: it maps
each parameter to the position of the parent in `after`, or to a list or dict of positions. The worker reads the results
before it runs the job, and completes the payload with them, so that they are validated like any other argument.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from millrace.app.job_handle import BaseHandle
from millrace.app.payloads.jsonable import MAX_DEPTH
from millrace.domain.errors import InvalidInput, PayloadInvalid
from millrace.domain.job import Spec
from millrace.domain.rules.precedence import NAMES, is_explicit, with_origin

INPUTS = "millrace-inputs"
Shape = int | list[Any] | dict[str, Any]  # a position, or a list or dict of shapes

_decode_shapes = msgspec.json.Decoder(dict[str, Any]).decode


def is_input(value: object) -> bool:
    """Return whether an argument stands for results of parents. Only the first item of a list or dict is examined."""
    for _ in range(MAX_DEPTH):  # a list may contain itself
        if not isinstance(value, list | tuple | dict) or not value:
            break
        value = next(iter(value.values() if isinstance(value, dict) else value))
    return isinstance(value, Spec | BaseHandle)


def holds_input(value: object) -> bool:
    """Return whether an argument, or any item of it, stands for results of parents."""
    left, seen = [value], set[int]()
    while left:
        one = left.pop()
        if isinstance(one, Spec | BaseHandle):
            return True
        if isinstance(one, list | tuple | dict) and id(one) not in seen:  # a list may contain itself
            seen.add(id(one))
            left.extend(one.values() if isinstance(one, dict) else one)
    return False


def split(values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return (arguments that are values, arguments that stand for results), both by name."""
    inputs = {name: value for name, value in values.items() if is_input(value)}
    return {name: value for name, value in values.items() if name not in inputs}, inputs


def parents_in(value: Any) -> list[Spec | BaseHandle[Any]]:
    """Return the specs and handles in an argument that stands for results, in order."""
    if isinstance(value, Spec | BaseHandle):
        return [value]
    if not isinstance(value, list | tuple | dict):
        raise PayloadInvalid(
            f"{value!r} is in a list with results of other jobs, but is none. A list or dict has either results only, "
            "or values only: pass them as two parameters."
        )
    items = value.values() if isinstance(value, dict) else value
    return [parent for item in items for parent in parents_in(item)]


def with_inputs(spec: Spec, inputs: Mapping[str, Any]) -> Spec:
    """Return the spec with these inputs: it waits for the parents, and a header has their positions."""
    parents = [parent for value in inputs.values() for parent in parents_in(value)]
    for parent in parents:
        if isinstance(parent, Spec) and parent.keep_result == 0:
            raise InvalidInput(
                f"the result of task {parent.task!r} cannot be passed to task {spec.task!r}, because keep_result=0 "
                "discards it. Set another keep_result."
            )
    after = tuple(dict.fromkeys((*spec.after, *(parent.id for parent in parents))))
    position = {job_id: number for number, job_id in enumerate(after)}
    shapes = {name: _shape(value, position) for name, value in inputs.items()}
    headers = {**(spec.headers or {}), INPUTS: msgspec.json.encode(shapes).decode()}
    return msgspec.structs.replace(spec, after=after, headers=headers)


def _shape(value: Any, position: Mapping[str, int]) -> Shape:
    if isinstance(value, Spec | BaseHandle):
        return position[value.id]
    if isinstance(value, dict):
        return {key: _shape(item, position) for key, item in value.items()}
    return [_shape(item, position) for item in value]


def has_inputs(spec: Spec) -> bool:
    return bool(spec.after) and spec.headers is not None and INPUTS in spec.headers


def inputs_of(spec: Spec) -> dict[str, Shape]:
    """Return the shapes of the inputs of a spec, by parameter."""
    return {} if not has_inputs(spec) else _decode_shapes((spec.headers or {})[INPUTS])


def parents_of_inputs(spec: Spec) -> list[str]:
    """Return the ids of the parents whose results are inputs of this job, each once."""
    positions = dict.fromkeys(number for shape in inputs_of(spec).values() for number in _positions(shape))
    return [spec.after[number] for number in positions]


def keeping_inputs(specs: list[Spec]) -> list[Spec]:
    """Return the specs, where those whose results are inputs of others have a `keep_result` of their own.

    Otherwise a worker whose default is 0 would discard these results.
    """
    needed = {parent for spec in specs if spec.after for parent in parents_of_inputs(spec)}
    return [_explicitly_kept(spec) if spec.id in needed else spec for spec in specs] if needed else specs


def _explicitly_kept(spec: Spec) -> Spec:
    return with_origin(spec, {"keep_result", *(name for name in NAMES if is_explicit(spec, name))})


def _positions(shape: Shape) -> Sequence[int]:
    if isinstance(shape, int):
        return [shape]
    items = shape.values() if isinstance(shape, dict) else shape
    return [number for item in items for number in _positions(item)]


def filled(shape: Shape, result_at: Callable[[int], Any]) -> Any:
    """Return the argument of a shape. `result_at` returns the result of the parent at a position."""
    if isinstance(shape, int):
        return result_at(shape)
    if isinstance(shape, dict):
        return {key: filled(item, result_at) for key, item in shape.items()}
    return [filled(item, result_at) for item in shape]
