"""FNV-1a, 32 bit: the same in every process and release, unlike Python's own hash (E-03)."""

from __future__ import annotations


def fnv1a(text: str) -> int:
    value = 0x811C9DC5
    for byte in text.encode("utf-8", "surrogatepass"):
        value = ((value ^ byte) * 0x01000193) & 0xFFFFFFFF
    return value
