"""Settings, brokers, priorities, routes and schedules of apps in Celery's style."""

from __future__ import annotations

import re
import types
from typing import Any

import pytest

from millrace import InvalidInput
from millrace.contrib.celery import Celery, NotCovered, crontab
from millrace.contrib.celery.brokers import store_url
from tests.contrib.celery_modules import reporting
from tests.narrowing import the


def make(broker: str | None = "memory://", **settings: Any) -> Celery:
    return Celery("made", broker=broker, set_as_current=False, **settings)


@pytest.mark.parametrize(
    ("broker", "store"),
    [
        ("redis://localhost:6379/0", "redis://localhost:6379/0"),
        ("rediss://user:secret@host:6380/1", "rediss://user:secret@host:6380/1"),
        ("redis+socket:///run/redis.sock", "redis+unix:///run/redis.sock?db=0"),
        ("redis+socket://:secret@/run/redis.sock?virtual_host=2", "redis+unix://:secret@/run/redis.sock?db=2"),
        ("redis+socket:///run/redis.sock?prefix=shop", "redis+unix:///run/redis.sock?db=0&prefix=shop"),
        ("sqla+sqlite:///jobs.db", "sqlite:///jobs.db"),
        ("sqlalchemy+sqlite:////var/lib/jobs.db", "sqlite:////var/lib/jobs.db"),
        ("sqla+postgresql+psycopg2://user@host/db", "postgresql://user@host/db"),
        ("memory://", "memory://"),
        ("postgresql://host/db", "postgresql://host/db"),
        ("s3://bucket/jobs", "s3://bucket/jobs"),
    ],
)
def test_the_url_of_a_broker_names_a_store(broker, store):
    assert store_url(broker) == store


@pytest.mark.parametrize(
    ("broker", "says"),
    [
        ("amqp://guest@localhost//", "RabbitMQ is not a store"),
        ("pyamqp://guest@localhost//", "Change broker=… to redis://"),
        ("sqs://", "with s3://bucket/prefix, a bucket is one"),
        ("sqla+mysql://host/db", "no store for mysql"),
        ("filesystem://", "file:///var/lib/jobs"),
        ("sentinel://host:26379", "redis\\+sentinel://"),
        ("zookeeper://host", "no store for zookeeper://"),
    ],
)
def test_a_broker_without_a_store_is_refused_with_the_line_to_change(broker, says):
    with pytest.raises(NotCovered, match=f"test_celery_settings.py, line \\d+: the broker .*{says}"):
        make(broker)


def test_an_app_without_a_broker_takes_it_from_the_environment(monkeypatch):
    for name in ("CELERY_BROKER_URL", "MILLRACE_URL"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(InvalidInput, match="has no broker"):
        _ = make(None).millrace
    monkeypatch.setenv("CELERY_BROKER_URL", "memory://")

    assert make(None).millrace.store.url.startswith("memory://")


def test_results_are_kept_in_the_store_whatever_backend_is_named():
    for backend in ("rpc://", "redis://localhost/1", "db+sqlite:///results.db"):
        assert make(backend=backend).conf.result_backend == backend
    with pytest.raises(NotCovered, match="the result backend mongodb://.* Remove backend="):
        make(backend="mongodb://host")


def test_priorities_mean_what_they_mean_on_the_broker():
    redis, other = make("redis://localhost:1/0"), make("sqlite:///jobs.db")

    assert [redis.priority(number) for number in (None, 0, 3, 9)] == [9, 9, 6, 0]
    assert [other.priority(number) for number in (None, 0, 3, 15)] == [0, 0, 3, 15]
    assert make("redis://localhost:1/0", millrace_priority_order="higher_first").priority(9) == 9
    assert make(millrace_priority_order="lower_first").priority(0) == 9
    assert make(task_default_priority=4).priority(None) == 4
    with pytest.raises(InvalidInput, match="from 0 to 9, and 0 runs first"):
        redis.priority(10)
    with pytest.raises(InvalidInput, match="from 0 to 15, and higher ones run first"):
        other.priority(255)


@pytest.mark.parametrize(
    ("setting", "value", "says"),
    [
        ("task_serializer", "pickle", "'json' or 'msgpack'"),
        ("accept_content", ["json", "application/x-python-serialize"], "stored data is never run as code"),
        ("task_soft_time_limit", 10, "Set task_time_limit"),
        ("worker_concurrency", 8, "--slots N"),
        ("task_queues", [object()], "a queue exists as soon as a job is in it"),
        ("beat_scheduler", "django_celery_beat.schedulers:DatabaseScheduler", "every worker runs the schedules"),
        ("task_annotations", {"*": {"rate_limit": "10/s"}}, "decorators of the tasks"),
        ("task_create_missing_queues", False, "Remove it"),
        ("enable_utc", False, "Remove it, and set timezone='Europe/Berlin'"),
        (
            "broker_transport_options",
            {"global_keyprefix": "staging:"},
            "broker='redis://host:6379/0\\?prefix=staging:'",
        ),
        ("broker_transport_options", {"queue_tablename": "staging"}, "\\?schema=NAME'"),
    ],
)
def test_settings_that_are_not_covered_are_refused_with_the_line_to_change(setting, value, says):
    app = make()
    with pytest.raises(NotCovered, match=f"test_celery_settings.py, line \\d+: .*{says}"):
        app.conf.update({setting: value})
    with pytest.raises(NotCovered, match=says):
        setattr(app.conf, setting, value)
    with pytest.raises(NotCovered, match=says):
        app.config_from_object({setting: value})


def test_a_setting_that_does_not_exist_is_refused_with_a_suggestion():
    app = make()

    with pytest.raises(InvalidInput, match="no setting 'task_default_qeue'. Did you mean 'task_default_queue'"):
        app.conf.task_default_qeue = "x"
    with pytest.raises(AttributeError, match="no setting 'nothing'"):
        _ = app.conf.nothing
    with pytest.raises(KeyError):
        app.conf["nothing"]


def test_settings_can_be_read_and_written_like_a_mapping():
    app = make()
    app.conf["task_default_queue"] = "shop"

    assert app.conf["task_default_queue"] == app.conf.task_default_queue == app.conf.get("task_default_queue") == "shop"
    assert "timezone" in app.conf and "nothing" not in app.conf
    assert app.conf.get("nothing", 1) == 1
    assert "result_expires" in list(app.conf)


def test_settings_come_from_an_object_with_a_namespace(monkeypatch):
    settings = types.SimpleNamespace(CELERY_TIMEZONE="Europe/Berlin", CELERY_TASK_ALWAYS_EAGER=True, DEBUG=True)
    app = make()
    app.config_from_object(settings, namespace="CELERY")

    assert (app.conf.timezone, app.conf.task_always_eager) == ("Europe/Berlin", True)
    with pytest.raises(InvalidInput, match="write the setting 'TIMEZONE' in lower case"):
        app.config_from_object(types.SimpleNamespace(TIMEZONE="UTC"))
    with pytest.raises(InvalidInput, match="no setting 'timezon'"):
        app.config_from_object(types.SimpleNamespace(CELERY_TIMEZON="UTC"), namespace="CELERY")


def test_options_of_a_broker_that_stores_do_not_need_are_accepted():
    app = make(enable_utc=True, broker_transport_options={"visibility_timeout": 3600, "global_keyprefix": ""})

    assert app.conf.broker_transport_options["visibility_timeout"] == 3600


def test_the_time_zone_of_django_s_settings_is_used_if_no_other_one_is_set():
    django = types.SimpleNamespace(TIME_ZONE="America/Chicago")
    app, other = make(), make()
    app.config_from_object(django, namespace="CELERY")
    other.config_from_object(types.SimpleNamespace(TIME_ZONE="UTC", CELERY_TIMEZONE="Asia/Tokyo"), namespace="CELERY")
    other.config_from_object(django, namespace="CELERY")

    assert (str(app.timezone), str(other.timezone), str(make().timezone)) == ("America/Chicago", "Asia/Tokyo", "UTC")


def test_settings_come_from_a_module_that_the_environment_names(monkeypatch):
    app = make()
    monkeypatch.setenv("SETTINGS", "tests.contrib.celery_modules.celeryconfig")
    app.config_from_envvar("SETTINGS")
    app.config_from_envvar("NO_SETTINGS", silent=True)

    assert app.conf.task_default_queue == "reports"
    with pytest.raises(InvalidInput, match="NO_SETTINGS is not set"):
        app.config_from_envvar("NO_SETTINGS")


def test_settings_are_fixed_once_the_app_is_used():
    app = make()
    app.finalize()
    app.conf.task_always_eager = True

    with pytest.raises(InvalidInput, match="'timezone' is set too late"):
        app.conf.timezone = "Europe/Berlin"


def test_tasks_are_routed_by_name_and_pattern():
    tasks = reporting.app.millrace.tasks

    assert tasks["reporting.nightly"].options.queue == "slow"
    assert tasks["reporting.mail_summary"].options.queue == "mail"
    assert tasks["reporting.ping"].options.queue == "reports"
    assert tasks["tests.contrib.celery_modules.shared.count_words"].options.keep_result is None  # result_expires = 0
    with pytest.raises(NotCovered, match="a function in task_routes"):
        _ = make(task_routes=[lambda name, *_: {"queue": name}]).send_task("x")
    with pytest.raises(NotCovered, match="'exchange' in task_routes"):
        _ = make(task_routes={"x": {"queue": "a", "exchange": "b"}}).send_task("x")


@pytest.mark.parametrize(
    ("routes", "queue"),
    [
        ({"routed.*": "star", "routed.exact": "name"}, "name"),
        ({"routed.exa*": "first", "routed.*": {"queue": "second"}}, "first"),
        ([{"routed.*": "router-1"}, {"routed.exact": "router-2"}], "router-1"),
        ([{"other": "router-1"}, [("routed.*", "star"), ("routed.exact", "pair")]], "pair"),
        ({re.compile(r"routed\..*"): "pattern"}, "pattern"),
        ({"routed.exac?": "a-name"}, "celery"),  # for Celery, only * makes a pattern
        ({"routed.exact": {}, "routed.*": "star"}, "celery"),
        (None, "celery"),
    ],
)
def test_the_first_router_decides_and_a_name_comes_before_patterns(routes, queue):
    app = make(task_routes=routes)
    app.task(name="routed.exact")(print)

    assert app.millrace.tasks["routed.exact"].options.queue == queue
    assert app.registered("routed.exact").spec(args=[], kwargs={}).queue == queue


def test_the_queue_of_a_call_comes_before_that_of_the_task_and_that_before_routes():
    app = make(task_routes={"routed.*": "route"})
    own = app.task(name="routed.own", queue="own")(print)
    routed = app.task(name="routed.other")(print)
    sent = [own.delay(), own.apply_async(queue="call"), routed.delay(), app.send_task("routed.elsewhere")]

    assert [the(app.millrace.sync.jobs.get(one.id)).queue for one in sent] == ["own", "call", "route", "route"]


def test_routers_that_are_no_dicts_are_refused():
    for routes in ("shop.Router", [lambda name, *_: None], [("routed.*", {"queue": "a"})], [3]):
        with pytest.raises(NotCovered, match="in task_routes is not covered .* Write a dict"):
            _ = make(task_routes=routes).send_task("x")


def test_beat_schedule_and_periodic_tasks_are_schedules():
    plans = reporting.app.millrace.plans
    facts = {
        name: (plan.schedule.expression, plan.schedule.tz, plan.schedule.task, plan.template.priority)
        for name, plan in plans.items()
    }

    assert facts == {
        "nightly-report-1425b8cd": ("30 3 * * MON-FRI", "Europe/Berlin", "reporting.nightly", 3),
        "ping": ("every 30s", "Europe/Berlin", "reporting.ping", 0),
        "summary-every-10-minutes-4d5c1615": ("every 10m", "Europe/Berlin", "reporting.mail_summary", 0),
        "reporting.mail_summary-grace-e03e381b": ("every 1m", "Europe/Berlin", "reporting.mail_summary", 0),
    }
    assert plans["reporting.mail_summary-grace-e03e381b"].template.expires == 30_000


@pytest.mark.parametrize(
    ("made", "expression"),
    [
        (crontab(), "* * * * *"),
        (crontab(minute="*/15", hour="8-17"), "*/15 8-17 * * *"),
        (crontab(0, 0, day_of_month="1,15"), "0 0 1,15 * *"),
        (crontab(minute=[0, 30], hour=3, month_of_year="january"), "0,30 3 * JAN *"),
        (crontab(minute=0, hour=0, day_of_week="sunday"), "0 0 * * SUN"),
    ],
)
def test_a_crontab_is_a_cron_expression(made, expression):
    assert made.expression == expression


def test_schedules_that_cron_does_not_have_are_refused():
    with pytest.raises(NotCovered, match="line \\d+: crontab with both day_of_month and day_of_week"):
        crontab(day_of_month=1, day_of_week="mon")
    with pytest.raises(NotCovered, match="'relative' in beat_schedule"):
        _ = make(beat_schedule={"a": {"task": "x", "schedule": 3, "relative": True}}).millrace


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ({"task": "x", "shedule": 3}, "there is no key 'shedule'. Did you mean 'schedule'"),
        ({"task": "x"}, "the key 'schedule' is missing"),
        ({"task": "x", "schedule": "daily"}, "a schedule is a number of seconds"),
        ({"task": "x", "schedule": crontab(minute="61")}, "61"),
        ({"task": "one", "schedule": 3, "args": (1, 2)}, "too many positional arguments"),
        ({"task": "one", "schedule": 3, "args": ({object()},)}, "object"),
        ({"task": "x", "schedule": 3, "options": {"exchange": "mail"}}, "Pass queue="),
    ],
)
def test_an_entry_that_cannot_be_a_schedule_is_named_at_every_use_of_the_app(entry, says):
    app = make(beat_schedule={"good": {"task": "x", "schedule": 30}, "the second": entry})
    app.task(name="one")(lambda argument: argument)

    for _ in range(2):
        with pytest.raises(InvalidInput, match=rf"beat_schedule\['the second'\]: .*{says}"):
            _ = app.millrace
    assert not app.is_final

    app.conf.beat_schedule["the second"] = {"task": "x", "schedule": 60}
    assert list(app.millrace.plans) == ["good", "the-second-066085a4"]


def test_names_that_differ_only_in_replaced_characters_are_different_schedules():
    names = ["отчёт", "привет", "a b", "a-b", "a/b", "x" * 128, "x" * 129]
    plans = make(beat_schedule={name: {"task": "x", "schedule": 30} for name in names}).millrace.plans

    assert len(plans) == len(names)
    assert {"a-b", "x" * 128} < plans.keys()


def test_modules_of_tasks_are_discovered_in_packages(tmp_path, monkeypatch):
    for name, text in (("shop_pkg", "found = True"), ("mail_pkg", None)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
        if text is not None:
            (tmp_path / name / "tasks.py").write_text(DISCOVERED, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    app = make()
    app.autodiscover_tasks(["shop_pkg", "mail_pkg", "no_such_package"])
    app.autodiscover_tasks(lambda: ["shop_pkg.tasks"], related_name=None)

    assert "shop_pkg.tasks.found" in app.millrace.tasks


DISCOVERED = """
from millrace.contrib.celery import shared_task

@shared_task
def found():
    return "found"
"""


def test_discovery_without_packages_needs_django(monkeypatch):
    monkeypatch.delenv("DJANGO_SETTINGS_MODULE", raising=False)

    with pytest.raises(InvalidInput, match="line \\d+: autodiscover_tasks\\(\\) without packages .* Pass the packages"):
        make().autodiscover_tasks()


def test_tasks_of_a_main_program_have_the_name_of_the_app():
    app = make()

    def task():
        return None

    task.__module__ = "__main__"

    assert app.name_of(task) == "made.task"
    assert app.task(task).name == "made.task"
    assert app.task(name="other")(task).name == "other"


def test_the_first_task_of_a_name_stays():
    app = make()

    assert app.task(name="same")(print) is app.task(name="same")(len)


def test_an_app_can_be_closed_and_used_again():
    with make() as app:
        app.send_task("some.task", task_id="one")
        assert app.AsyncResult("one").name == "some.task"
    assert repr(app) == "<Celery made>"
    app.close()
