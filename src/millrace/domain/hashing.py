"""The hash function FNV-1a (32 bits). Unlike Python's own hash, its result is the same in every process and release."""

from __future__ import annotations


def fnv1a(text: str) -> int:
    value = 0x811C9DC5
    for byte in text.encode("utf-8", "surrogatepass"):
        value = ((value ^ byte) * 0x01000193) & 0xFFFFFFFF
    return value
