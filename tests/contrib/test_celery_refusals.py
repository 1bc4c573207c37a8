"""What Celery has and this module does not: each use fails at import or at the call, with the line to change."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest

from millrace import InvalidInput
from millrace.contrib import celery
from millrace.contrib.celery import AsyncResult, Celery, NotCovered, group, shared_task
from millrace.contrib.celery.conf import DEFAULTS
from millrace.contrib.celery.options import CALL_OPTIONS, TASK_OPTIONS
from tests.contrib.celery_modules import first_steps

app = Celery("refusals", broker="memory://", set_as_current=False)


def function():
    return None


async def coroutine():
    return None


@app.task(bind=True)
def retries_with(self, **options):
    raise self.retry(**options)


REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "rate_limit": (lambda: app.task(rate_limit="10/m")(function), "app.millrace.sync.limit"),
    "soft_time_limit": (lambda: app.task(soft_time_limit=5)(function), "cannot be interrupted. Write time_limit"),
    "routing_key": (lambda: app.task(routing_key="x")(function), "Pass queue="),
    "on_failure": (lambda: app.task(on_failure=function)(function), "Define it in a class"),
    "pydantic": (lambda: app.task(pydantic=True)(function), "@app.millrace.task"),
    "pickle": (lambda: app.task(serializer="pickle")(function), "'json' or 'msgpack'"),
    "coroutine": (lambda: app.task(coroutine), "@app.millrace.task, which takes both"),
    "call exchange": (lambda: first_steps.add.apply_async((1, 2), exchange="x"), "Pass queue="),
    "call shadow": (lambda: first_steps.add.apply_async((1, 2), shadow="x"), "the dashboard shows the name"),
    "call serializer": (lambda: first_steps.add.apply_async((1, 2), serializer="msgpack"), "Set it for the task"),
    "chunks": (lambda: first_steps.add.chunks([(1, 2)], 10), "Write a task for a list"),
    "map": (lambda: first_steps.add.map([1]), "Write group"),
    "starmap": (lambda: first_steps.add.starmap([(1, 2)]), "Write group"),
    "replace": (lambda: first_steps.add.replace(None), "Enqueue the signature"),
    "update_state": (lambda: first_steps.add.update_state("x", "y"), "Call it in the task itself"),
    "link of a group": (lambda: group(first_steps.add.s(1, 2)).link(first_steps.add.s(3)), "Write chord"),
    "freeze": (lambda: first_steps.add.s().freeze(), "Pass task_id"),
    "then": (lambda: AsyncResult("x", app=app).then(function), "Pass link="),
    "worker_main": (lambda: app.worker_main([]), "millrace worker --app"),
    "start": (lambda: app.start([]), "millrace worker --app"),
    "inspect": (lambda: app.control.inspect([]), "millrace workers"),
    "chunks import": (lambda: celery.chunks, "Write a task for a list"),
    "signals": (
        lambda: import_module("millrace.contrib.celery.signals").task_failure,
        "on_failure in a base",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_covered_names_the_line_and_what_to_write(name):
    use, says = REFUSED[name]

    with pytest.raises(NotCovered, match=f"test_celery_refusals.py, line \\d+: .*is not covered .*{says}") as error:
        use()

    line = int(str(error.value).partition("line ")[2].partition(":")[0])
    assert inspect.getsourcelines(use)[1] <= line <= inspect.getsourcelines(use)[1] + 2


def test_a_module_that_uses_more_cannot_be_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    text = "from millrace.contrib.celery import Celery\n\napp = Celery('m', broker='memory://')\n\n\n"
    text += "@app.task(rate_limit='10/m')\ndef limited():\n    pass\n"
    (tmp_path / "limited_tasks.py").write_text(text, encoding="utf-8")
    (tmp_path / "signalling.py").write_text("from millrace.contrib.celery.signals import task_prerun\n", "utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))

    with pytest.raises(NotCovered, match="limited_tasks.py, line 6: the option 'rate_limit' of task 'limited_tasks"):
        __import__("limited_tasks")
    with pytest.raises(NotCovered, match="signalling.py, line 1: the signal 'task_prerun'"):
        __import__("signalling")
    sys.modules.pop("signalling", None)


def test_options_that_do_not_exist_are_refused_with_a_suggestion():
    with pytest.raises(InvalidInput, match="no option 'max_retry'. Did you mean 'max_retries'"):
        app.task(max_retry=3)(function)
    with pytest.raises(InvalidInput, match="no option 'count_down'. Did you mean 'countdown'"):
        first_steps.add.apply_async((1, 2), count_down=3)
    with pytest.raises(InvalidInput, match="countdown or eta, not both"):
        first_steps.add.apply_async((1, 2), countdown=3, eta="2026-01-01T00:00:00+00:00")
    with pytest.raises(InvalidInput, match="takes options by name"):
        app.task("name")


def test_shared_tasks_are_refused_where_they_are_declared():
    with pytest.raises(NotCovered, match="test_celery_refusals.py, line \\d+: the option 'soft_time_limit'"):

        @shared_task(soft_time_limit=3)
        def limited():
            pass


def test_a_retry_with_other_arguments_is_refused():
    for options, what in (({"args": (1,)}, "args"), ({"queue": "x"}, "queue"), ({"throw": False}, "throw")):
        result = retries_with.apply(kwargs=options)
        assert isinstance(result.result, NotCovered)
        assert f"self.retry({what}=…)" in str(result.result)


def test_options_without_an_effect_are_accepted():
    task = app.task(name="refusals.accepted", track_started=True, trail=True, throws=(KeyError,))(function)

    assert task.apply_async(retry=True, retry_policy={"max_retries": 3}, add_to_parent=False).state == "PENDING"
    app.close()


def test_the_page_and_the_reference_name_what_there_is():
    docs = Path(__file__).resolve().parents[2] / "docs"
    page, reference = ((docs / name).read_text("utf-8") for name in ("moving/celery.md", "reference/celery.md"))
    own = {"current_app", "current_task", "exceptions", "states", "subtask"}  # objects and modules, on the page alone

    assert set(re.findall(r"^::: millrace.contrib.celery.(\w+)$", reference, re.MULTILINE)) == set(celery.__all__) - own
    assert [name for name in DEFAULTS if f"`{name}`" not in page and name != "millrace_priority_order"] == []
    assert [name for name in TASK_OPTIONS | CALL_OPTIONS if not re.search(rf"\b{name}\b", page)] == []
    assert [name for name in celery.__all__ if not inspect.getdoc(getattr(celery, name))] == []
