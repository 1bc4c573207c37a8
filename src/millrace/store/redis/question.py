"""What is asked of a script: msgpack for what it decides on, and beside it the bytes it only keeps."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any

import msgspec

from millrace.domain.change import Change, Verb
from millrace.domain.check import Checked
from millrace.domain.job import Lease, Spec
from millrace.store.redis.record import error_text, spec_bodies

encode = msgspec.msgpack.Encoder().encode
BODIES = 5  # the number of the first of them among a script's arguments

_template = attrgetter(
    "queue",
    "task",
    "priority",
    "lease",
    "keep_result",
    "expires",
    "retry_blocks",
    "on_dependency",
    "on_dead_letter",
    "delay",  # of all these, the only one that is no part of the record's constants
)


def packed_specs(specs: Sequence[Spec], bodies: list[bytes]) -> list[list[Any]]:
    """Specs as lists, in the order of scripts/lib/admission.lua; their bytes are put behind `bodies`."""
    items: list[list[Any]] = []
    for spec in specs:
        items.append(
            [
                spec.id,
                spec.token,
                spec.queue,
                spec.task,
                spec.priority,
                spec.lease,
                spec.keep_result,
                spec.expires,
                spec.group,
                spec.retry_blocks,
                spec.key,
                spec.scope,
                spec.on_dependency,
                spec.on_dead_letter,
                spec.hook,
                spec.delay,
                spec.window,
                spec.on_hit,
                spec.reuse,
                spec.allow_missing,
                spec.after or None,
                BODIES + len(bodies) + len(items),
            ]
        )
    bodies += spec_bodies(specs)
    return items


def plain_groups(specs: Sequence[Spec], bodies: list[bytes]) -> list[tuple[Any, ...]] | None:
    """Runs of specs that differ in id, token and payload only, for scripts/enqueue_plain.lua; their bytes are put
    behind `bodies`. None when one is not plain, or two share an id."""
    if len({spec.id for spec in specs}) < len(specs):
        return None
    runs: list[Sequence[Spec]] = []
    if type(specs) is Checked:  # made from one template
        if _is_special(specs[0]):
            return None
        runs.append(specs)
    else:
        template: tuple[Any, ...] | None = None
        run: list[Spec] = []
        for spec in specs:
            if _is_special(spec):
                return None
            mine = _template(spec)
            if mine != template:
                runs.append(run := [])
                template = mine
            run.append(spec)
    bodies += spec_bodies(specs)
    groups: list[tuple[Any, ...]] = []
    for alike in runs:
        groups.append(_group(alike, BODIES + len(bodies)))
        bodies.append(_constants(*_template(alike[0])[:-1]))
    return groups


def _is_special(spec: Spec) -> bool:
    return spec.key is not None or spec.group is not None or bool(spec.after) or spec.hook


def _group(specs: Sequence[Spec], constants: int) -> tuple[Any, ...]:
    first = specs[0]
    ids = [spec.id for spec in specs]
    tokens = [spec.token for spec in specs]
    own = None if tokens == ids else tokens
    return (first.queue, first.task, first.priority, first.expires, first.delay, constants, ids, own)


@lru_cache(1_000)
def _constants(
    queue: str,
    task: str,
    priority: int,
    lease: int,
    keep_result: int | None,
    expires: int | None,
    retry_blocks: bool,
    on_dependency: str,
    on_dead_letter: str | None,
) -> bytes:
    """The constant part of a plain record, but for id and token, in the order of scripts/lib/jobs.lua."""
    values = (queue, task, priority, lease, keep_result, expires, None, retry_blocks, None, "live", on_dependency)
    return b"".join(map(encode, (*values, on_dead_letter, False, False)))


def plain_ends(items: Sequence[tuple[Lease, Change]], bodies: list[bytes]) -> list[Any] | None:
    """Completions by columns, which a script reads in less time than rows; None when one is more than that.

    The results are put behind `bodies`."""
    seqs: list[int] = []
    leases: list[str] = []
    durations: list[int | None] = []
    results: list[int | bool] = []
    found: list[bytes] = []
    for lease, change in items:
        if change.verb is not Verb.COMPLETE or change.jobs or change.failed or change.stalled or change.reason:
            return None
        if change.error is not None:
            return None
        seqs.append(lease.seq)
        leases.append(lease.id)
        durations.append(change.duration)
        result = change.result
        if result is None:
            results.append(False)
        else:
            found.append(result)
            results.append(BODIES + len(found) - 1)
    if len(set(seqs)) < len(seqs):
        return None
    bodies += found
    return [None, seqs, leases, durations, results]


def packed_changes(items: Sequence[tuple[Lease, Change]], bodies: list[bytes]) -> list[list[Any]]:
    """Changes as lists, in the order of scripts/settle.lua."""
    packed: list[list[Any]] = []
    for lease, change in items:
        result: int | None = None
        if change.result is not None:
            result = BODIES + len(bodies)
            bodies.append(change.result)
        packed.append(
            [
                lease.seq,
                lease.id,
                change.verb,
                change.delay,
                result,
                error_text(change.error),
                change.reason,
                change.failed,
                change.stalled,
                change.duration,
                packed_specs(change.jobs, bodies) if change.jobs else None,
            ]
        )
    return packed
