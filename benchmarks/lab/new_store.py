"""Empty stores of a kind, one after the other, for the length of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.lab import postgres_place, redis_place
from benchmarks.lab.subject import PLACES

KINDS = ("sqlite", "redis", "postgres")


@contextmanager
def new_stores(kind: str, options: str = "") -> Iterator[Callable[[], str]]:
    """Gives what answers the URL of an empty store. On a server, the one before is gone then."""
    with TemporaryDirectory(prefix="millrace-bench-") as folder:
        if kind == "sqlite":
            numbers = count()
            yield lambda: f"sqlite:///{folder}/{next(numbers)}.db{options}"
            return
        place = redis_place if kind == "redis" else postgres_place
        with place.a_server() as make_empty:

            def new() -> str:
                make_empty()
                url: str = place.url_of(Path(PLACES[0]))
                return url + options

            yield new
