"""The scripts as text: a name that nobody knows would stop one half-way, and half-way there is no way back."""

from __future__ import annotations

import re
from importlib import resources
from itertools import takewhile
from pathlib import Path

import pytest

import millrace
from millrace.store.redis import scripts
from millrace.store.redis.scripts import METHODS, script

PACKAGE = Path(millrace.__file__).parent
FOLDER = Path(str(resources.files(scripts)))
FILES = sorted(str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*.lua"))

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
    """No command whose cost is not bounded by what was asked for, or by the number of queues, tasks and workers, and of
    those who wait and what they know."""
    text = _COMMENT.sub("", script(name).source)

    assert not re.search(r"'(KEYS|SMEMBERS|HVALS|SORT|FLUSHDB|FLUSHALL|SCAN)', (?!P \.\. 'combos:')", text)
    for key in re.findall(r"'(?:HGETALL|HKEYS)', ([^)]*)\)", text):
        assert key in {"KEY.task", "KEY.worker", "KEY.queue", "KEY.asleep", "P .. 'idle:' .. queue"}, key


@pytest.mark.parametrize("name", METHODS)
def test_no_script_hands_two_keys_to_one_command(name: str):
    """A node that takes over a slot refuses such a command while a key is missing: the script would end half-way."""
    found = re.findall(r"call\(\s*'(DEL|UNLINK|EXISTS|TOUCH|MGET|MSET|RENAME|COPY|LMOVE)'(.*)", script(name).source)
    assert [words for command, words in found if re.match(r",[^,()]*(\([^()]*\))?[^,()]*,", words)] == []
    assert not re.search(r"call\(\s*'[A-Z]*STORE'", script(name).source)


def test_the_same_script_has_the_same_name_in_every_process():
    assert len({script(name).sha for name in METHODS}) == len(METHODS)
    assert all(re.fullmatch(r"[0-9a-f]{40}", script(name).sha) for name in METHODS)


def rules_of(text: str) -> list[tuple[str, str]]:
    """The functions that a file says it repeats, each with its module: `Repeats a, b and c of domain/x.py; d of …`."""
    header = " ".join(line.removeprefix("--").strip() for line in takewhile(_COMMENT.match, text.splitlines()))
    found = re.search(r"Repeats (.*?\.py)\.", header)
    parts = [] if found is None else [part.rsplit(" of ", 1) for part in found[1].split("; ")]
    return [(name, module) for names, module in parts for name in re.split(r", | and ", names)]


@pytest.mark.parametrize("file", FILES)
def test_every_rule_that_a_script_repeats_is_in_the_domain(file: str):
    text = (FOLDER / file).read_text("utf-8")

    assert ("Repeats" in text) == bool(rules_of(text))
    for name, module in rules_of(text):
        *_, last = name.split(".")
        assert re.search(rf"^ *(def|class) {last}\b", (PACKAGE / module).read_text("utf-8"), re.MULTILINE), (
            name,
            module,
        )


def test_most_scripts_repeat_a_rule_and_say_which():
    silent = {file for file in FILES if not rules_of((FOLDER / file).read_text("utf-8"))}

    assert silent == {
        *("bounds.lua", "feed.lua", "get.lua", "history.lua", "wake_up.lua", "watch.lua"),  # only read, or only wait
        *(f"lib/{name}.lua" for name in ("ahead", "done", "fast_path", "jobs", "lines", "modules", "names")),
        *("lib/rows.lua", "lib/tables.lua", "lib/walk.lua", "lib/write.lua"),
    }


@pytest.mark.parametrize(
    ("rule", "file"),
    [
        (r"lease_id [~=]=", "lib/fence.lua"),
        (r"KEY\.lease, '-inf'", "reclaim.lua"),  # expired leases
        (r"on_dependency [~=]=", "lib/ending.lua"),  # what the end of a parent is to a child
        (r"last_beat \+ ttl", "lib/lines.lua"),
        (r"\.ends [<>]", "lib/lines.lua"),
        (r"dead_cap\b.* or settings\.dead_overflow", "lib/time.lua"),
        (r"failed_parent and job\.auto_retries <", "lib/step.lua"),
        (r"\.fast_enqueue", "lib/accepts.lua"),
        (r"\.fast_claim", "fast_path/claim.lua"),
        (r"\.fast_settle", "fast_path/settle.lua"),
    ],
)
def test_a_rule_is_in_one_file(rule: str, file: str):
    said = {name for name in FILES if re.search(rule, _COMMENT.sub("", (FOLDER / name).read_text("utf-8")))}

    assert said == {file}
