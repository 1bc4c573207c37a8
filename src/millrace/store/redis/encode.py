"""Encodes the arguments of scripts: values that a script reads as msgpack, and bodies (bytes that it only stores)."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import msgspec
from msgspec import UNSET

from millrace.domain.change import Change
from millrace.domain.job import Lease, Spec
from millrace.domain.outcome import Failure
from millrace.domain.rules.fast_path import only_completes

encode = msgspec.msgpack.Encoder().encode
_encode_json = msgspec.json.Encoder().encode
_TAILS = [bytes([number]) for number in range(256)]
BODIES = 5  # the index of the first body among a script's arguments

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


def place_of(body: bytes | None, bodies: list[bytes]) -> int | None:
    """Append a value to `bodies`, and return its place among the arguments of the script; None if there is none."""
    if body is None:
        return None
    bodies.append(body)
    return BODIES + len(bodies) - 1


def _kept(change: Change) -> int | None:
    """Return `keep_result` of a change for scripts: None if it is not set, and -1 for no limit."""
    if change.keep_result is UNSET:
        return None
    return -1 if change.keep_result is None else change.keep_result


def packed_changes(items: Sequence[tuple[Lease, Change]], bodies: list[bytes]) -> list[list[Any]]:
    """Return each change as a list, in the order of scripts/settle.lua, and append the results to `bodies`."""
    packed: list[list[Any]] = []
    for lease, change in items:
        result = place_of(change.result, bodies)
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
                _kept(change),
                place_of(change.log, bodies),
            ]
        )
    return packed
