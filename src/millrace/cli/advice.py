"""Messages of exceptions, rewritten for the command line: flags are named instead of Python arguments."""

from __future__ import annotations

import re
import shlex

from millrace.domain.errors import WaitTimeout

FLAGS_FOR = {
    "pass allow_missing=True": "use --allow-missing",
    "enqueue with on_hit='keep' or 'replace'": "submit with --on-hit keep or replace",
    "Pass scope='window' with a window": "Use --window",
    "Pass key, or remove": "Use --key, or remove",
    "Pass one that the store returned, or None": "Pass one that the store returned",
}
BAD_SETTING = re.compile(r"^bad setting: Expected `([^`]*)`, got `([^`]*)` - at `\$\.(\w+)`$")
TYPE_NAMES = {"float": "a number", "int": "a whole number", "str": "a word", "bool": "true or false", "null": "none"}


def as_typed(error: BaseException) -> str:
    if isinstance(error, WaitTimeout):
        again = f"millrace status {shlex.quote(error.job)} --wait 1m"
        text = f"job {error.job!r} has not finished within {error.waited:g} s. The job continues. Check it: {again}"
    else:
        text = str(error) or type(error).__name__
    text = "\n".join([text, *getattr(error, "__notes__", [])])
    for in_code, flag in FLAGS_FOR.items():
        text = text.replace(in_code, flag)
    return BAD_SETTING.sub(_bad_setting, text)


def _bad_setting(found: re.Match[str]) -> str:
    wanted, got, name = found.groups()
    kinds = " or ".join(TYPE_NAMES.get(kind.strip(), kind.strip()) for kind in wanted.split("|"))
    return f"{name} takes {kinds}, not {TYPE_NAMES.get(got, got)}"
