"""An error in the words of the command line: the API advises in Python, and here one types."""

from __future__ import annotations

import re
import shlex

from millrace.domain.errors import WaitTimeout

TYPED = {
    "pass allow_missing=True": "say --allow-missing",
    "enqueue with on_hit='keep', 'replace' or 'extend'": "submit with --on-hit keep, replace or extend",
    "use one that it gave out, or None": "use one that it gave out",
}
BAD_SETTING = re.compile(r"^bad setting: Expected `([^`]*)`, got `([^`]*)` - at `\$\.(\w+)`$")
TYPES = {"float": "a number", "int": "a whole number", "str": "a word", "bool": "true or false", "null": "none"}


def as_typed(error: BaseException) -> str:
    if isinstance(error, WaitTimeout):
        again = f"millrace status {shlex.quote(error.job)} --wait 1m"
        text = f"job {error.job!r} has not finished within {error.waited:g} s. It goes on; ask: {again}"
    else:
        text = str(error) or type(error).__name__
    text = "\n".join([text, *getattr(error, "__notes__", [])])
    for in_code, typed in TYPED.items():
        text = text.replace(in_code, typed)
    return BAD_SETTING.sub(_setting, text)


def _setting(found: re.Match[str]) -> str:
    wanted, got, name = found.groups()
    kinds = " or ".join(TYPES.get(kind.strip(), kind.strip()) for kind in wanted.split("|"))
    return f"{name} takes {kinds}, not {TYPES.get(got, got)}"
