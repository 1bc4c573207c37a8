"""Precedence of options: a job's own option, then the task's, the queue's, the worker's, the app's, and the built-in
default.

The options in `NAMES` are stored with a job, so that any worker knows them. The defaults of queues, workers and apps
apply only to options that neither the caller nor the task has set. So `Spec.origin` records which values are explicit.
Usually `origin` is 0, which means: a value is explicit if it differs from the built-in default. The bits of `origin`
mark two exceptions: an explicit value that equals the built-in default, and a default of an app or a queue.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from millrace.domain.job import Spec

NAMES = ("lease", "timeout", "retry", "max_attempts", "keep_result")
ALL_ORIGINS = (1 << 2 * len(NAMES)) - 1
BUILT_IN = {name: getattr(Spec("id", "task"), name) for name in NAMES}
_EXPLICIT = {name: 1 << n for n, name in enumerate(NAMES)}
_FROM_APP = {name: 1 << (n + len(NAMES)) for n, name in enumerate(NAMES)}


def is_explicit(spec: Spec, name: str) -> bool:
    """Return whether the caller or the task has set this option. If not, its value is a default."""
    if spec.origin & _EXPLICIT[name]:
        return True
    return getattr(spec, name) != BUILT_IN[name] and not spec.origin & _FROM_APP[name]


def with_origin(spec: Spec, explicit: Collection[str]) -> Spec:
    """Return the spec with `origin` set so that `is_explicit` is True for exactly these names."""
    origin = 0
    for name in NAMES:
        built_in = getattr(spec, name) == BUILT_IN[name]
        if built_in and name in explicit:
            origin |= _EXPLICIT[name]
        elif not built_in and name not in explicit:
            origin |= _FROM_APP[name]
    return spec if origin == spec.origin else msgspec.structs.replace(spec, origin=origin)


def with_defaults(spec: Spec, defaults: Mapping[str, Any]) -> Spec:
    """Return the spec with `defaults` applied to the options that are not explicit."""
    changes = {
        name: value for name, value in defaults.items() if getattr(spec, name) != value and not is_explicit(spec, name)
    }
    return msgspec.structs.replace(spec, **changes) if changes else spec


class JobDefaults:
    """What a worker applies to the jobs of one task."""

    __slots__ = ("_of_queues", "_others")

    def __init__(
        self, general: Mapping[str, Any], of_queues: Mapping[str, Mapping[str, Any]], of_task: Mapping[str, Any]
    ) -> None:
        self._others = {**general, **of_task}
        self._of_queues = {queue: {**general, **some, **of_task} for queue, some in of_queues.items()}

    @property
    def is_empty(self) -> bool:
        return not (self._others or self._of_queues)

    def applied_to(self, spec: Spec) -> Spec:
        return with_defaults(spec, self._of_queues.get(spec.queue, self._others))
