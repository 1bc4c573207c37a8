"""Encodes the arguments of scripts: values that a script reads as msgpack, and bodies (bytes that it only stores)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any

import msgspec

from millrace.domain.change import Change
from millrace.domain.job import Lease, Spec
from millrace.domain.outcome import Failure
from millrace.domain.rules.check import Checked
from millrace.domain.rules.fast_path import is_simple, only_completes

encode = msgspec.msgpack.Encoder().encode
_encode_json = msgspec.json.Encoder().encode
_TAILS = [bytes([number]) for number in range(256)]
BODIES = 5  # the index of the first body among a script's arguments

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
    "delay",  # the only one that is not in the constant part of the record
)


SPEC_FIELDS = (
    *("id", "token", "queue", "task", "priority", "lease", "keep_result", "expires", "group", "retry_blocks", "key"),
    *("scope", "on_dependency", "on_dead_letter", "hook", "delay", "window", "on_hit", "reuse", "rerun_expired"),
    "allow_missing",
)
"""The fields of a spec that the rules in Lua need, in the order in which they are sent; parents and body come last."""

_spec_values = attrgetter(*SPEC_FIELDS)


def error_text(error: Failure | None) -> str | None:
    return None if error is None else _encode_json(error).decode()


def spec_bodies(specs: Sequence[Spec]) -> list[bytes]:
    """Encode the specs, and append one byte to each. Neighbouring specs get different bytes.

    Lua hashes only some bytes of a long string, but always the last one. Without the extra byte, the hashes of similar
    specs would collide.
    """
    return [encode(spec) + _TAILS[number & 255] for number, spec in enumerate(specs)]


def packed_specs(specs: Sequence[Spec], bodies: list[bytes]) -> list[list[Any]]:
    """Return each spec as a list of the fields that scripts need, and append its encoded bytes to `bodies`."""
    first = BODIES + len(bodies)
    bodies += spec_bodies(specs)
    return [[*_spec_values(spec), spec.after or None, first + number] for number, spec in enumerate(specs)]


def fast_path_groups(specs: Sequence[Spec], bodies: list[bytes]) -> list[tuple[Any, ...]] | None:
    """Return groups of consecutive specs that differ only in id, token and payload, for scripts/fast_path/enqueue.lua.

    The encoded specs are appended to `bodies`, followed by the fields that each group shares. Return None if a spec is
    not simple (see domain/rules/fast_path.py) or if two specs have the same id.
    """
    if len({spec.id for spec in specs}) < len(specs):
        return None
    runs: list[Sequence[Spec]] = []
    if type(specs) is Checked:  # made from one template
        if not is_simple(specs[0]):
            return None
        runs.append(specs)
    else:
        template: tuple[Any, ...] | None = None
        run: list[Spec] = []
        for spec in specs:
            if not is_simple(spec):
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
    """Encode the unchanging fields of a simple job, without id and token, in the order of scripts/lib/jobs.lua."""
    values = (queue, task, priority, lease, keep_result, expires, None, retry_blocks, None, "live", on_dependency)
    return b"".join(map(encode, (*values, on_dead_letter, False, False)))


def fast_path_completions(items: Sequence[tuple[Lease, Change]], bodies: list[bytes]) -> list[Any] | None:
    """Return completions as columns, which a script reads faster than rows, and append the results to `bodies`.

    Returns None if a change does more than complete its job, or if two changes are for the same job.
    """
    seqs: list[int] = []
    leases: list[str] = []
    durations: list[int | None] = []
    results: list[int | bool] = []
    found: list[bytes] = []
    for lease, change in items:
        if not only_completes(change):
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
    """Return each change as a list, in the order of scripts/settle.lua, and append the results to `bodies`."""
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
