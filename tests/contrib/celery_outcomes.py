"""The same task modules on Celery or on Millrace: what their calls return. `python celery_outcomes.py celery|millrace`.

For Celery, the imports of the modules are changed back, as docs/moving/celery.md changes them.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import UTC, date, datetime
from decimal import Decimal
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import UUID

MODULES = Path(__file__).parent / "celery_modules"
NAMES = ("first_steps", "mailing", "classes", "pipeline")
PATIENCE = 60
HOMES = {
    "AsyncResult": "celery.result",
    "GroupResult": "celery.result",
    "crontab": "celery.schedules",
    "get_task_logger": "celery.utils.log",
}


def as_celery(text: str) -> str:
    """Return a module with the imports that it had for Celery."""

    def imports(match: re.Match[str]) -> str:
        names = [name.strip() for name in match[1].split(",")]
        return "\n".join(f"from {HOMES.get(name, 'celery')} import {name}" for name in names)

    text = re.sub(r"^from millrace\.contrib\.celery import (.+)$", imports, text, flags=re.MULTILINE)
    return text.replace("millrace.contrib.celery.", "celery.")


def load(kind: str, folder: str) -> dict[str, Any]:
    """Copy the modules to a folder, on Celery or on Millrace, and import them from there."""
    sys.path.insert(0, folder)
    for name in NAMES:
        text = (MODULES / f"{name}.py").read_text(encoding="utf-8")
        Path(folder, f"{name}.py").write_text(as_celery(text) if kind == "celery" else text, encoding="utf-8")
    return {name: import_module(name) for name in NAMES}


def working(kind: str, app: Any) -> AbstractContextManager[Any]:
    if kind == "millrace":
        from tests.contrib.celery_worker import working

        return working(app)
    from celery.contrib.testing.worker import start_worker  # type: ignore[import-not-found]

    app.conf.update(broker_url="memory://", result_backend="cache+memory://")
    app.set_current()
    worker: AbstractContextManager[Any] = start_worker(app, pool="solo", perform_ping_check=False)
    return worker


def got(result: Any) -> Any:
    return result.get(timeout=PATIENCE)


def failure(result: Any) -> list[str]:
    """The type and the message of the error of a task."""
    error = result.get(timeout=PATIENCE, propagate=False)
    own = getattr(error, "error", None)  # of JobFailed
    return [type(error).__name__, str(error)] if own is None else [own.type, own.message]


def raised(call: Callable[[], Any]) -> str:
    try:
        call()
    except Exception as error:
        return type(error).__name__
    return "nothing"


def until(met: Callable[[], Any]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not met() and time.monotonic() < deadline:
        time.sleep(0.01)


def of_first_steps(m: Any, chain: Any, group: Any, chord: Any) -> dict[str, Any]:
    values = [1, "two", None, {"three": [3.5]}, datetime(2026, 1, 2, 3, tzinfo=UTC), date(2026, 1, 2), Decimal("1.50")]
    values += [UUID(int=7, version=4), b"\x00\xff", (1, 2), {1: 2}]
    add, mul, total, echo = m.add, m.mul, m.total, m.echo
    done = add.delay(2, 3)
    two = group(add.s(1, 1), add.s(2, 2))
    return {
        "a call": got(done),
        "state": [done.state, done.ready(), done.successful(), done.failed(), done.result],
        "values": repr(got(echo.delay(*values, key=values))),
        "too few": raised(lambda: add.delay(1)),
        "too many": raised(lambda: add.s(1, 2, 3).delay()),
        "unchecked": failure(m.unchecked.delay(1, 2))[0],
        "failure": failure(m.divide.delay(1, 0)),
        "directly": [add(1, 2), add.s(1)(2), add.s(1, 2)()],
        "ignored": got(m.say_hello.apply()),
        "names": [add.name, m.say_hello.name],
        "apply": [add.apply((1, 2)).get(), m.divide.apply((1, 0)).state],
        "chain": [got(chain(add.s(2, 2), mul.s(8), mul.s(10))()), got(chain(add.s(4) | mul.s(8)).delay(12))],
        "parents": [got(r) for r in lineage((add.s(2, 2) | mul.s(8) | mul.s(10)).delay())],
        "immutable": got(chain(add.s(2, 2), add.si(4, 4), mul.s(2))()),
        "group": got(group(add.s(number, number) for number in range(5))()),
        "group with arguments": got(group(add.s(1), add.s(2)).delay(10)),
        "chord": got(chord(add.s(number, number) for number in range(10))(total.s())),
        "group in a chain": got((two | total.s()).delay()),
        "chord in a chain": got((two | total.s() | add.s(100)).delay()),
        "fan-out": got((add.s(1, 2) | group(add.s(1), add.s(2)) | total.s()).delay()),
        "chains in a chord": got((group(add.s(1, 1) | mul.s(2), add.s(2, 2) | mul.s(2)) | total.s()).delay()),
        "a list is a group": got(chord([add.s(1, 1), add.s(2, 2)], total.s()).apply_async()),
        "repr": [repr(add.s(1, 2)), repr(add.s(1).clone((2,), {"y": 3}))],
        "of one": [got(group([add.s(1, 1)])()), got(chain(add.s(1, 1))()), got(chord([add.s(1, 1)], total.s())())],
        "of none": got(group([])()),
        "later": got(chain(add.s(1, 1), add.s(y=5)).apply_async(countdown=0.1)),
        "apply flows": [
            chain(add.s(1, 2), mul.s(3)).apply().get(),
            group(add.s(1, 2), mul.s(3, 3)).apply().get(),
            chord([add.s(1, 2), add.s(3, 3)], total.s()).apply().get(),
        ],
        "family": family(m, chain, group),
        "eager": eager(m, chain, group, chord),
    }


def eager(m: Any, chain: Any, group: Any, chord: Any) -> list[Any]:
    m.app.conf.task_always_eager = True
    try:
        return [
            chain(m.add.s(1, 2), m.mul.s(3)).delay().get(),
            chord([m.add.s(1, 2), m.add.s(3, 3)], m.total.s()).delay().get(),
            (m.add.s(1, 2) | group(m.add.s(1), m.add.s(2)) | m.total.s()).delay().get(),
            m.divide.delay(1, 0).state,
        ]
    finally:
        m.app.conf.task_always_eager = False


def family(m: Any, chain: Any, group: Any) -> list[Any]:
    """How the requests of a chain and of a group name each other."""
    last = chain(m.whoami.s(), m.whoami.s())()
    second, first = got(last), got(last.parent)
    members = group(m.whoami.s(), m.whoami.s())()
    own = got(members)
    return [
        [first["root"] == first["id"], first["parent"], first["group"], first["args"], first["queue"]],
        [second["root"] == first["id"], second["parent"] == first["id"], second["args"] == [first]],
        [[one["root"] == one["id"], one["group"] == members.id] for one in own],
    ]


def lineage(result: Any) -> list[Any]:
    found = [result]
    while found[-1].parent is not None:
        found.append(found[-1].parent)
    return found


def of_mailing(m: Any) -> dict[str, Any]:
    found = {
        "retries": {key: got(m.send.delay("ada", fails=2))[key] for key in ("retries", "args")},
        "gives up with its error": failure(m.send.delay("bob", fails=99)),
        "gives up": failure(m.gives_up.delay())[0],
        "handles the end": got(m.handles_the_end.delay()),
        "autoretry": got(m.send_bulk.delay("cid", 2)),
        "autoretry gives up": failure(m.send_bulk.delay("dan", 9)),
        "not retried": failure(m.send_to_bad.delay("eve"))[0],
        "progress": got(m.import_contacts.delay(3)),
        "an ordinary error": failure(m.import_contacts.delay("x"))[0],
        "apply retries": m.send.apply(("fay",), {"fails": 2}).get()["retries"],
        "apply gives up": m.send_bulk.apply(("gil", 9)).state,
    }
    return {**found, "tries": dict(m.tries)}


def of_classes(m: Any) -> dict[str, Any]:
    results = [got(m.age_of.delay("ada")), failure(m.fetch.delay("x")), got(m.crawl.delay("y"))]
    until(lambda: ("after", "FAILURE") in m.log)
    inside = got(m.in_context.delay())
    own = m.in_context_with_super.delay()
    return {"results": results, "log": list(m.log), "inside": inside[-1:], "own id": got(own) == own.id}


def of_pipeline(m: Any, chain: Any) -> dict[str, Any]:
    album = got(m.make_album(["a", "b"], title="summer").delay())
    m.fetch.apply_async(("missing",), link_error=[m.report.s(), m.report_id.s()])
    until(lambda: m.reports and m.ids)
    reports = [[task, args] for task, _, args in m.reports]
    linked = m.fetch.apply_async(("a",), link=m.note.s())
    got(linked)
    until(lambda: linked.children)
    return {
        "album": album,
        "chain of errors": errors_of(m, chain(m.fetch.s("missing"), m.shrink.s()).apply_async, link_error=m.report.s()),
        "copies": got(m.make_copies("a").delay()),
        "None": got(chain(m.note.s(None), m.note.s())()),
        "reports": reports,
        "ids": len(m.ids),
        "link": got(linked.children[0]),
    }


def errors_of(m: Any, call: Callable[..., Any], **options: Any) -> list[Any]:
    m.reports.clear()
    call(**options)
    until(lambda: m.reports)
    return [[task, args] for task, _, args in m.reports]


def outcomes(kind: str, folder: str) -> dict[str, Any]:
    canvas = import_module("celery" if kind == "celery" else "millrace.contrib.celery")
    found: dict[str, Any] = {}
    for name, module in load(kind, folder).items():
        module.app.set_default()
        with working(kind, module.app):
            if name == "first_steps":
                found[name] = of_first_steps(module, canvas.chain, canvas.group, canvas.chord)
            elif name == "pipeline":
                found[name] = of_pipeline(module, canvas.chain)
            else:
                found[name] = of_mailing(module) if name == "mailing" else of_classes(module)
    return found


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        print("\n" + json.dumps(outcomes(sys.argv[1], folder)))
