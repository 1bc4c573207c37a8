"""`app.conf`: the settings of a Celery app, checked when they are set.

A setting has an effect here (`DEFAULTS`), needs none (`WITHOUT_EFFECT`), or is refused, with the line to change
(`REFUSED`). The names are those of Celery 4 and later, in lower case.
"""

from __future__ import annotations

import copy
import types
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

from millrace.contrib.celery.brokers import check_backend, store_url
from millrace.contrib.celery.exceptions import NotCovered, user_line
from millrace.domain.errors import InvalidInput, did_you_mean

DEFAULTS: dict[str, Any] = {
    "beat_schedule": {},
    "broker_url": None,
    "imports": (),
    "include": (),
    "millrace_priority_order": None,
    "result_backend": None,
    "result_expires": 86_400,
    "result_serializer": "json",
    "task_acks_late": False,
    "task_always_eager": False,
    "task_default_priority": None,
    "task_default_queue": "celery",
    "task_eager_propagates": False,
    "task_ignore_result": False,
    "task_routes": None,
    "task_serializer": "json",
    "task_time_limit": None,
    "timezone": None,  # UTC
}
WITHOUT_EFFECT = frozenset(
    {
        "accept_content",  # checked: no pickle
        "beat_max_loop_interval",
        "beat_schedule_filename",
        "broker_channel_error_retry",
        "broker_connection_max_retries",
        "broker_connection_retry",
        "broker_connection_retry_on_startup",
        "broker_connection_timeout",
        "broker_heartbeat",
        "broker_pool_limit",
        "broker_transport_options",
        "enable_utc",
        "redis_backend_health_check_interval",
        "redis_max_connections",
        "redis_retry_on_timeout",
        "redis_socket_connect_timeout",
        "redis_socket_keepalive",
        "redis_socket_timeout",
        "result_accept_content",
        "result_backend_always_retry",
        "result_backend_max_retries",
        "result_backend_transport_options",
        "result_cache_max",
        "result_chord_join_timeout",
        "result_chord_retry_interval",
        "result_extended",
        "result_persistent",
        "task_acks_on_failure_or_timeout",
        "task_create_missing_queues",
        "task_publish_retry",
        "task_publish_retry_policy",
        "task_send_sent_event",
        "task_store_errors_even_if_ignored",
        "task_track_started",
        "worker_cancel_long_running_tasks_on_connection_loss",
        "worker_disable_rate_limits",
        "worker_enable_remote_control",
        "worker_hijack_root_logger",
        "worker_log_color",
        "worker_prefetch_multiplier",
        "worker_proc_alive_timeout",
        "worker_redirect_stdouts",
        "worker_redirect_stdouts_level",
        "worker_send_task_events",
    }
)
_FLAG = "Remove it, and pass {} to `millrace worker`"
_SCHEMA = "Remove it, and give each deployment a schema: broker='postgresql://host/db?schema=NAME', or a file on SQLite"
REFUSED: dict[str, str] = {
    "beat_scheduler": "Remove it: every worker runs the schedules, and each tick is enqueued once",
    "database_engine_options": "Remove it, and write the options into the URL of the store",
    "result_compression": "Remove it",
    "result_exchange": "Remove it: results are kept with their jobs",
    "security_key": "Remove it: stores do not sign jobs",
    "task_annotations": "Set the options in the decorators of the tasks",
    "task_compression": "Remove it",
    "task_default_exchange": "Remove it: there are queues, and no exchanges",
    "task_default_rate_limit": "Limit a task or a queue over all workers: app.millrace.sync.limit(task, rate=…)",
    "task_default_routing_key": "Set task_default_queue",
    "task_inherit_parent_priority": "Pass priority=… with the call",
    "task_queue_max_priority": "Remove it: all queues have priorities",
    "task_queues": "Remove it: a queue exists as soon as a job is in it. A worker serves `--queues a,b`",
    "task_reject_on_worker_lost": "Set task_acks_late: such a task runs again if its worker dies",
    "task_remote_tracebacks": "Remove it: tracebacks are stored with their jobs",
    "task_soft_time_limit": "A thread cannot be interrupted. Set task_time_limit",
    "task_store_eager_result": "Remove it",
    "worker_autoscaler": "Remove it",
    "worker_concurrency": _FLAG.format("--slots N"),
    "worker_log_format": "Configure `logging` instead",
    "worker_max_memory_per_child": _FLAG.format("--max-memory-per-child"),
    "worker_max_tasks_per_child": _FLAG.format("--max-jobs"),
    "worker_pool": "Remove it: tasks run in threads",
    "worker_task_log_format": "Configure `logging` instead",
}
# Options of brokers that keep the jobs of several deployments apart. Stores have options of their own for that.
_NAMESPACES = {
    "global_keyprefix": "Remove it, and write the prefix into the URL: broker='redis://host:6379/0?prefix={}'",
    "message_tablename": _SCHEMA,
    "queue_tablename": _SCHEMA,
}
AT_ANY_TIME = frozenset({"task_always_eager", "task_eager_propagates"})
_SERIALIZERS = ("json", "msgpack")


class CeleryConf:
    """The settings of a Celery app, as attributes and as items. Assignments are checked."""

    _values: dict[str, Any]
    _frozen: bool

    def __init__(self) -> None:
        object.__setattr__(self, "_values", copy.deepcopy(DEFAULTS))
        object.__setattr__(self, "_frozen", False)

    def update(self, *sources: Mapping[str, Any], **settings: Any) -> None:
        """Set several settings."""
        for source in (*sources, settings):
            for name, value in source.items():
                self._set(name, value)

    def read(self, source: Any, namespace: str | None = None) -> None:
        """Set the settings that an object, a module, a mapping or the name of a module has.

        With a namespace, only names such as CELERY_TIMEZONE are settings. Other names of the source are ignored, except
        TIME_ZONE of Django's settings: as in Celery, it is the time zone if no other one is set.
        """
        source = _load(source) if isinstance(source, str) else source
        for name, value in _settings_of(source, namespace):
            self._set(name, value)
        if self._values["timezone"] is None:
            self._set("timezone", getattr(source, "TIME_ZONE", None))

    def freeze(self) -> None:
        """Refuse changes from now on, except of settings that are read at every call."""
        object.__setattr__(self, "_frozen", True)

    def get(self, name: str, default: Any = None) -> Any:
        """Return a setting, or the default if it has no effect here."""
        return self._values.get(name, default)

    def __getattr__(self, name: str) -> Any:
        if name in self._values:
            return self._values[name]
        if name in REFUSED:
            raise NotCovered(f"the setting {name!r}", REFUSED[name])
        raise AttributeError(f"there is no setting {name!r}. {did_you_mean(name, DEFAULTS)}")

    def __setattr__(self, name: str, value: Any) -> None:
        self._set(name, value)

    def __getitem__(self, name: str) -> Any:
        try:
            return self._values[name]
        except KeyError:
            raise KeyError(f"there is no setting {name!r}. {did_you_mean(name, DEFAULTS)}") from None

    def __setitem__(self, name: str, value: Any) -> None:
        self._set(name, value)

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def _set(self, name: str, value: Any) -> None:
        if name in REFUSED and value is not None:
            raise NotCovered(f"the setting {name!r}", REFUSED[name])
        if name not in DEFAULTS and name not in WITHOUT_EFFECT and name not in REFUSED:
            known = [*DEFAULTS, *WITHOUT_EFFECT]
            raise InvalidInput(f"{user_line()}: there is no setting {name!r}. {did_you_mean(name, known)}")
        if self._frozen and name not in AT_ANY_TIME:
            raise InvalidInput(
                f"{user_line()}: the setting {name!r} is set too late. The app has already been used, and its tasks "
                "are registered. Set it where the app is created"
            )
        _check(name, value)
        self._values[name] = value


def _check(name: str, value: Any) -> None:
    if name == "broker_url" and value is not None:
        store_url(value)
    elif name == "result_backend" and value is not None:
        check_backend(value)
    elif name in ("task_serializer", "result_serializer"):
        check_serializer(name, value)
    elif name in ("accept_content", "result_accept_content"):
        for kind in value or ():
            check_serializer(name, str(kind).rpartition("/")[2])
    elif name == "millrace_priority_order" and value not in (None, "lower_first", "higher_first"):
        raise InvalidInput(f"{user_line()}: {name} is 'lower_first' or 'higher_first', not {value!r}")
    elif name == "task_create_missing_queues" and not value:
        raise NotCovered("task_create_missing_queues=False", "Remove it: a queue exists as soon as a job is in it")
    elif name == "enable_utc" and not value:
        raise NotCovered(
            "enable_utc=False",
            "With Celery, times are then those of the machine. Remove it, and set timezone='Europe/Berlin', or another "
            "time zone",
        )
    elif name == "broker_transport_options":
        for option, fix in _NAMESPACES.items():
            if (value or {}).get(option):
                raise NotCovered(f"{option!r} in broker_transport_options", fix.format(value[option]))


def check_serializer(where: str, value: object) -> None:
    """Raise NotCovered for a serializer that Millrace does not have, such as pickle."""
    if value not in _SERIALIZERS:
        raise NotCovered(f"{where}={value!r}", "Use 'json' or 'msgpack': stored data is never run as code")


def _settings_of(source: Any, namespace: str | None) -> Iterator[tuple[str, Any]]:
    items = source.items() if isinstance(source, Mapping) else _attributes(source)
    prefix = "" if namespace is None else namespace.upper() + "_"
    known = DEFAULTS.keys() | WITHOUT_EFFECT | REFUSED.keys()
    for name, value in items:
        if prefix and not name.upper().startswith(prefix):
            continue
        setting = name[len(prefix) :].lower() if prefix else name
        if setting in known:
            yield setting, value
        elif prefix or isinstance(source, Mapping):
            raise InvalidInput(f"{user_line()}: there is no setting {setting!r}. {did_you_mean(setting, known)}")
        elif name.lower() in known and not isinstance(value, types.ModuleType):
            raise InvalidInput(f"{user_line()}: write the setting {name!r} in lower case: {name.lower()!r}")


def _load(name: str) -> Any:
    module, _, attribute = name.partition(":")
    found = import_module(module)
    if not attribute:
        return found
    if attribute == "settings" and module == "django.conf":
        return found.settings
    return getattr(found, attribute)


def _attributes(source: Any) -> Iterator[tuple[str, Any]]:
    for name in dir(source):
        if not name.startswith("_"):
            yield name, getattr(source, name)
