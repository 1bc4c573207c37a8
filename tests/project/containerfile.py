"""The instructions of deploy/container/Containerfile."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

FILE = Path(__file__).resolve().parents[2] / "deploy" / "container" / "Containerfile"


def stages() -> dict[str, dict[str, str]]:
    """The last instruction of each kind in each stage of the Containerfile, with those of the stage it begins from."""
    text = FILE.read_text("utf-8")
    text = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ")
    found: dict[str, dict[str, str]] = {}
    current: dict[str, str] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        kind, _, value = line.partition(" ")
        if kind == "FROM":
            source, _, name = value.partition(" AS ")
            found[name] = current = {"FROM": source, **found.get(source, {})}
        elif kind == "ENV":
            current["ENV"] = f"{current.get('ENV', '')} {value}".strip()
        else:
            current[kind] = value
    return found


def variables_of(target: str) -> dict[str, str]:
    """The settings of Millrace that an image has."""
    words = (word.partition("=") for word in shlex.split(stages()[target]["ENV"]))
    return {name: value for name, _, value in words if name.startswith("MILLRACE")}


def health_command_of(target: str) -> str:
    """The line of shell that a container runtime runs to check the health."""
    return stages()[target]["HEALTHCHECK"].partition(" CMD ")[2]
