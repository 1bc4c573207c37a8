"""The scripts as text: a name that nobody knows would stop one half-way, and half-way there is no way back."""

from __future__ import annotations

import re

import pytest

from millrace.store.redis.scripts import METHODS, script

KNOWN = {
    *(
        [
            "and",
            "break",
            "do",
            "else",
            "elseif",
            "end",
            "false",
            "for",
            "function",
            "if",
            "in",
            "local",
            "nil",
            "not",
            "or",
            "repeat",
            "return",
            "then",
            "true",
            "until",
        ]
    ),
    *(["while", "ARGV", "KEYS", "cmsgpack", "redis", "struct", "bit", "math", "string", "table"]),
    *(
        [
            "error",
            "ipairs",
            "next",
            "pairs",
            "pcall",
            "rawget",
            "setmetatable",
            "tonumber",
            "tostring",
            "type",
            "unpack",
        ]
    ),
}
_STRING = re.compile(r"'(?:\\.|[^'\\])*'")
_COMMENT = re.compile(r"--[^\n]*")
_FIELD = re.compile(r"[.:]\s*[A-Za-z_]\w*")
_ENTRY = re.compile(r"([{,]\s*)[A-Za-z_]\w*\s*=(?!=)")
_NAME = re.compile(r"\b[A-Za-z_]\w*\b")


def defined(text: str) -> set[str]:
    names: set[str] = set()
    for listed in re.findall(r"\blocal\s+(?!function\b)(\w+(?:\s*,\s*\w+)*)", text):
        names.update(_NAME.findall(listed))
    names.update(re.findall(r"\blocal\s+function\s+(\w+)", text))
    for listed in re.findall(r"\bfunction\b[^(\n]*\(([^)]*)\)", text):
        names.update(_NAME.findall(listed))
    for listed in re.findall(r"\bfor\s+([\w\s,]+?)\s*(?:=|\bin\b)", text):
        names.update(_NAME.findall(listed))
    return names


@pytest.mark.parametrize("name", METHODS)
def test_every_name_a_script_uses_is_known(name: str):
    text = _STRING.sub("''", _COMMENT.sub("", script(name).source))
    bare = _ENTRY.sub(r"\1", _FIELD.sub("", text.replace("..", " ")))

    assert set(_NAME.findall(bare)) - defined(text) - KNOWN == set()


@pytest.mark.parametrize("name", METHODS)
def test_no_script_asks_for_everything(name: str):
    """No command whose cost is not bounded by what was asked for, or by the number of queues, tasks and workers."""
    text = _COMMENT.sub("", script(name).source)

    assert not re.search(r"'(KEYS|SMEMBERS|HVALS|SORT|FLUSHDB|FLUSHALL|SCAN)', (?!P \.\. 'combos:')", text)
    for key in re.findall(r"'(?:HGETALL|HKEYS)', ([^)]*)\)", text):
        assert key in {"KEY.task", "KEY.worker", "KEY.queue"}, key


def test_the_same_script_has_the_same_name_in_every_process():
    assert len({script(name).sha for name in METHODS}) == len(METHODS)
    assert all(re.fullmatch(r"[0-9a-f]{40}", script(name).sha) for name in METHODS)
