"""The environment becomes the options of an object store.

A value that makes no sense is an error that names its variable: a store that silently took the default would be the
harder riddle.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from millrace.domain.errors import InvalidInput
from millrace.store.object.keys import Layout
from millrace.store.object.options import ObjectOptions
from millrace.store.variables import ADDRESS_SETTINGS, OBJECT_SETTINGS, PREFIX


def object_options(env: Mapping[str, str] | None = None, *, feed_delay: int | None = None) -> ObjectOptions:
    """`feed_delay` is what holds here unless the environment says otherwise."""
    env = os.environ if env is None else env
    given: dict[str, Any] = {} if feed_delay is None else {"feed_delay": feed_delay}
    for setting in OBJECT_SETTINGS:
        found = setting.found(env)
        if found is None:
            continue
        value = setting.read(*found)
        if setting.field:
            given[setting.field] = round(value * setting.scale) if setting.scale else value
    if "no_monitor" in given:
        given["monitor"] = not given.pop("no_monitor")
    options = ObjectOptions(**given)
    _check_shards(options)
    return options


def bucket_environment(env: Mapping[str, str] | None = None) -> Mapping[str, str]:
    """The environment as the address of a bucket reads it, with our own names for what it calls S3_*."""
    env = os.environ if env is None else env
    named = {
        setting.aliases[0]: env[setting.env] for setting in ADDRESS_SETTINGS if setting.aliases and env.get(setting.env)
    }
    return {**env, **named} if named else env


def _check_shards(options: ObjectOptions) -> None:
    known = Layout(options.shard_digits).shards
    strange = sorted(set(options.shards or ()) - set(known))
    if strange:
        raise InvalidInput(
            f"{PREFIX}SHARDS: there is no shard {strange[0]!r}; with {PREFIX}SHARD_DIGITS={options.shard_digits} "
            f"they are {known[0]} to {known[-1]}"
        )
