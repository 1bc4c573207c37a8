"""Encodes enqueues for the fast path: scripts/fast_path/enqueue_one.lua and scripts/fast_path/enqueue.lua.

Specs that differ only in id, token, payload and links are sent as one group, so that a script reads and packs once what
they have in common. Links connect a job to others: a group, a unique key, or parents.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any

from millrace.domain.job import Spec
from millrace.domain.rules.check import Checked
from millrace.domain.rules.fast_path import is_simple
from millrace.store.redis.encode import BODIES, encode, spec_bodies

_constant_fields = (
    *("queue", "task", "priority", "lease", "keep_result", "expires", "retry_blocks", "on_dependency"),
    "on_dead_letter",
)
_template = attrgetter(*_constant_fields, "delay")
_CONSTANTS = len(_constant_fields)


def packed_call(specs: Sequence[Spec], bodies: list[bytes]) -> tuple[str, list[Any]] | None:
    """Return the name of the script that enqueues the specs by the fast path, and its arguments.

    The encoded specs, and the fields that they share, are appended to `bodies`. Return None if the fast path cannot
    apply.
    """
    spec = specs[0]
    if len(specs) == 1 and spec.token and is_simple(spec):
        bodies += spec_bodies(specs)
        bodies.append(_constants(*_template(spec)[:_CONSTANTS]))
        arguments = [spec.queue, spec.task, spec.priority, spec.expires, spec.delay, spec.id, spec.token]
        return "fast_path/enqueue_one", arguments
    groups = packed_groups(specs, bodies)
    return None if groups is None else ("fast_path/enqueue", [groups, None])


def packed_groups(specs: Sequence[Spec], bodies: list[bytes]) -> list[tuple[Any, ...]] | None:
    """Return the specs in groups, for scripts/fast_path/enqueue.lua.

    The encoded specs are appended to `bodies`, followed by the fields that each group shares. Return None if the fast
    path cannot apply, for example if two specs have the same id.
    """
    numbers = {spec.id: number for number, spec in enumerate(specs)}
    if len(numbers) < len(specs):
        return None
    if type(specs) is Checked and is_simple(specs[0]):  # made from one template
        return _packed(specs, [(specs, None)], bodies)
    runs: dict[tuple[Any, ...], tuple[list[Spec], list[int]]] = {}
    for position, spec in enumerate(specs, start=1):
        kind = _template(spec)
        if not is_simple(spec):
            if not _may_link(spec, numbers):
                return None
            kind += (spec.group is not None, spec.key is not None, bool(spec.after), spec.scope, spec.window)
        run = runs.get(kind)
        if run is None:
            run = runs[kind] = ([], [])
        run[0].append(spec)
        run[1].append(position)
    keys = [(spec.queue, spec.key) for spec in specs if spec.key is not None]
    if len(set(keys)) < len(keys):
        return None
    if len(runs) == 1:
        return _packed(specs, [(specs, None)], bodies)
    return _packed(specs, list(runs.values()), bodies)


def _may_link(spec: Spec, numbers: dict[str, int]) -> bool:
    """Return whether scripts/fast_path/links.lua can handle a spec with a group, a key or parents.

    A member of a group must be due now and have no parents. A parent in the same call must come first, because the
    script does not look for cycles.
    """
    if spec.hook or (spec.group is not None and (spec.after or spec.delay)):
        return False
    if not spec.after:
        return True
    own = numbers[spec.id]
    return len(set(spec.after)) == len(spec.after) and all(numbers.get(parent, -1) < own for parent in spec.after)


def _packed(
    specs: Sequence[Spec], runs: Sequence[tuple[Sequence[Spec], list[int] | None]], bodies: list[bytes]
) -> list[tuple[Any, ...]]:
    bodies += spec_bodies(specs)
    groups: list[tuple[Any, ...]] = []
    for alike, positions in runs:
        first = alike[0]
        ids = [spec.id for spec in alike]
        tokens: list[str] | None = [spec.token for spec in alike]
        if tokens == ids:
            tokens = None
        shared = (first.queue, first.task, first.priority, first.expires, first.delay, BODIES + len(bodies))
        constants = _template(first)[:_CONSTANTS]
        if is_simple(first):
            groups.append((*shared, ids, tokens, positions, None))
            bodies.append(_constants(*constants))
        else:
            groups.append((*shared, ids, tokens, positions, _links(alike)))
            bodies += _linked_constants(*constants, first.scope, bool(first.after))
    return groups


def _links(specs: Sequence[Spec]) -> list[Any]:
    """Return groups, keys, scope, window and parents of specs that all have them or all have none."""
    first = specs[0]
    return [
        first.group is not None and [spec.group for spec in specs],
        first.key is not None and [spec.key for spec in specs],
        first.scope,
        first.window,
        bool(first.after) and [spec.after for spec in specs],
    ]


@lru_cache(1_000)
def _constants(*fields: Any) -> bytes:
    """Encode the unchanging fields of a simple job, without id and token, in the order of scripts/lib/jobs.lua."""
    head, middle, tail = _linked_constants(*fields, "live", False)
    return b"".join((head, encode(None), middle, encode(None), tail))


@lru_cache(1_000)
def _linked_constants(*fields: Any) -> tuple[bytes, bytes, bytes]:
    """Encode the unchanging fields of a job in three pieces. Its group is between the first two, its key comes next."""
    *head, retry_blocks, on_dependency, on_dead_letter, scope, waits = fields
    return _joined(*head), _joined(retry_blocks), _joined(scope, on_dependency, on_dead_letter, False, waits)


def _joined(*values: Any) -> bytes:
    return b"".join(map(encode, values))
