"""The memory store keeps its queues in shards, chosen by FNV-1a of their names (E-02, E-03)."""

from __future__ import annotations

import pytest

from millrace.domain.hashing import fnv1a
from millrace.domain.tables import QueueRow
from millrace.store.memory.tables import MemoryTables

# The published values of FNV-1a, 32 bits, and those of names as they are used here, in UTF-8.
KNOWN = {
    "": 0x811C9DC5,
    "a": 0xE40C292C,
    "b": 0xE70C2DE5,
    "foobar": 0xBF9CF968,
    "default": 0x933B5BDE,
    "mail": 0xEC90E52E,
    "größe": 0xCD38F49A,
}


@pytest.mark.parametrize("text", KNOWN)
def test_the_hash_of_a_name_is_fnv1a_and_never_changes(text):
    assert fnv1a(text) == KNOWN[text]


@pytest.mark.parametrize("shards", [1, 2, 8, 64])
def test_the_shard_of_a_queue_is_its_hash_and_the_number_of_shards_less_one(shards):
    tables = MemoryTables(shards)
    names = [name for name in KNOWN if name]
    for name in names:
        tables.put_queue(QueueRow(name))

    where = {name: index for index, shard in enumerate(tables._shards) for name in shard}

    assert where == {name: KNOWN[name] & (shards - 1) for name in names}
