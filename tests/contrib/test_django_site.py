"""A Django site with Millrace: its migrations, its admin, its dashboard, its worker processes, and PostgreSQL."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.asgi import get_asgi_application
from django.core.management import call_command
from django.db import connection, connections, transaction
from django.test import Client, override_settings
from django.utils import timezone

from millrace.contrib.django import get_app
from millrace.contrib.django.api import TaskResultDoesNotExist, TaskResultStatus
from millrace.contrib.django.app import get_worker_app
from millrace.contrib.django.dashboard import with_dashboard
from tests.cli.process import eventually
from tests.contrib.client import TestClient
from tests.contrib.site import start, tasks  # in this order
from tests.servers import postgres as postgres_server

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a database that `manage.py migrate` has created."""
    file = tmp_path_factory.mktemp("site") / "site.sqlite3"
    use(file)
    call_command("migrate", verbosity=0)
    close()
    return file


@pytest.fixture
def site(migrated: Path, tmp_path: Path) -> Iterator[Path]:
    """Give a test a copy of the migrated database."""
    file = tmp_path / "site.sqlite3"
    shutil.copy(migrated, file)
    use(file)
    yield file
    close()


def use(file: Path) -> None:
    connections.close_all()
    connection.settings_dict["NAME"] = str(file)


def close() -> None:
    get_app().sync.close()
    connections.close_all()


def test_migrate_creates_the_tables_of_millrace_so_that_the_first_enqueue_may_be_in_a_transaction(site):
    with transaction.atomic():
        result = tasks.noop.enqueue()
        later = tasks.noop.using(run_after=timezone.now() + timedelta(hours=1)).enqueue()
    result.refresh()
    later.refresh()

    assert result.status == later.status == TaskResultStatus.READY
    assert "millrace_store" in connection.introspection.table_names()


def test_no_migration_is_missing(site):
    call_command("makemigrations", "--check", "--dry-run", verbosity=0)


def test_the_site_passes_django_s_checks(site):
    call_command("check", fail_level="WARNING")


def make_user(name: str, *permissions: str, **more: Any) -> Any:
    user = get_user_model().objects.create_user(name, password="a long password", is_staff=True, **more)
    permission = user.user_permissions.model
    for codename in permissions:
        user.user_permissions.add(permission.objects.get(codename=codename, content_type__app_label="millrace"))
    return user


def test_the_admin_links_to_the_dashboard_for_users_who_may_see_it(site):
    make_user("viewer", "view_dashboard")
    make_user("nobody")
    viewer, nobody = Client(), Client()
    assert viewer.login(username="viewer", password="a long password")
    assert nobody.login(username="nobody", password="a long password")

    assert "/admin/millrace/dashboard/" in viewer.get("/admin/").content.decode()
    assert viewer.get("/admin/millrace/dashboard/").headers["location"] == "/jobs/"
    assert "/admin/millrace/dashboard/" not in nobody.get("/admin/").content.decode()


@pytest.mark.parametrize(
    ("permissions", "more", "looks", "pauses", "deletes"),
    [
        ((), {}, 401, 401, 401),
        (("view_dashboard",), {}, 200, 403, 403),
        (("view_dashboard", "change_dashboard"), {}, 200, 200, 403),
        ((), {"is_superuser": True}, 200, 200, 200),
    ],
    ids=["nobody", "viewer", "operator", "superuser"],
)
def test_the_dashboard_has_the_login_of_the_site(site, permissions, more, looks, pauses, deletes):
    make_user("ada", *permissions, **more)
    result = tasks.noop.enqueue()
    get_app().sync.jobs.cancel(result.id)
    login = Client()
    assert login.login(username="ada", password="a long password")
    cookies = {name: morsel.value for name, morsel in login.cookies.items()}
    own = {"origin": "http://site.example"}

    with TestClient(with_dashboard(get_asgi_application(), "/jobs"), base_url="http://site.example") as browser:
        assert browser.get("/jobs/api/queues").status_code == 401  # not logged in
        browser.cookies.update(cookies)
        assert "Millrace" in browser.get("/jobs/").text
        assert browser.get("/jobs/api/queues").status_code == looks
        assert browser.post("/jobs/api/queues/default/pause", headers=own).status_code == pauses
        assert browser.post(f"/jobs/api/jobs/{result.id}/delete", headers=own).status_code == deletes
        assert browser.post("/jobs/api/queues/default/pause").status_code == 403  # no page of the site
        assert browser.get("/jobsite").status_code == 404  # Django's own
        assert browser.get("/admin/login/").status_code == 200
        browser.cookies.clear()


@pytest.fixture
def session_key(site: Path) -> str:
    """Return the key of a session of a superuser."""
    make_user("root", is_superuser=True)
    login = Client()
    assert login.login(username="root", password="a long password")
    return str(login.cookies["sessionid"].value)


@pytest.mark.parametrize(
    "cookies",
    [
        ["sessionid=KEY"],
        ['theme={"dark": true}; sessionid=KEY'],
        ["bad[name]=1; sessionid=KEY"],
        ["theme=dark", "sessionid=KEY", "zoom=2"],
    ],
    ids=["alone", "after JSON", "after an odd name", "in one of several headers"],
)
def test_the_dashboard_finds_the_session_among_other_cookies(session_key, cookies):
    headers = [("cookie", one.replace("KEY", session_key)) for one in cookies]
    with TestClient(with_dashboard(get_asgi_application(), "/jobs")) as browser:
        assert browser.get("/jobs/api/queues", headers=headers).status_code == 200


def test_the_dashboard_keeps_sessions_while_the_secret_key_is_rotated(session_key):
    headers = {"cookie": f"sessionid={session_key}"}
    rotated = override_settings(SECRET_KEY="another", SECRET_KEY_FALLBACKS=[settings.SECRET_KEY])
    with rotated, TestClient(with_dashboard(get_asgi_application(), "/jobs")) as browser:
        assert [browser.get("/jobs/api/queues", headers=headers).status_code for _ in range(2)] == [200, 200]
        page = Client(headers=headers).get("/admin/")
        assert page.status_code == 200  # still logged in on the site
        assert page.cookies["sessionid"].value != session_key  # which replaces the session


@pytest.mark.parametrize(("root", "below"), [("/pre", "/pre"), ("/pre/", "/pre"), ("/pre", ""), ("", "")])
def test_the_dashboard_is_found_below_the_root_path_of_the_server(session_key, root, below):
    headers = {"cookie": f"sessionid={session_key}"}
    with TestClient(with_dashboard(get_asgi_application(), "/jobs"), root_path=root) as browser:
        assert "Millrace" in browser.get(f"{below}/jobs/").text
        assert browser.get(f"{below}/jobs/api/queues", headers=headers).status_code == 200
        assert browser.get(f"{below}/jobsite").status_code == 404  # Django's own


def test_worker_processes_run_tasks_of_the_site(site, tmp_path):
    results = [tasks.noop.enqueue(number) for number in range(20)]
    environ = {**os.environ, "SITE_DATABASE": str(site), "DJANGO_SETTINGS_MODULE": start.SETTINGS}
    command = [sys.executable, "-m", "django", "millrace", "worker", "--processes", "2"]
    process = subprocess.Popen(command, cwd=ROOT, env={**environ, "PYTHONPATH": str(ROOT)}, start_new_session=True)
    try:
        app = get_app()
        eventually(lambda: app.sync.queue("default").counts().completed == len(results))
    finally:
        process.terminate()
        code = process.wait(timeout=120)

    assert code == 0
    for result in results:
        result.refresh()
        assert result.status == TaskResultStatus.SUCCESSFUL


@pytest.fixture
def on_postgres(tmp_path: Path) -> Iterator[None]:
    """Make a database of a PostgreSQL server that of the site."""
    parts = urlsplit(postgres_server.url_for(tmp_path))
    name = f"site_{secrets.token_hex(4)}"
    given = {"USER": parts.username, "PASSWORD": parts.password or "", "HOST": parts.hostname, "PORT": parts.port}
    admin = psycopg.connect(parts._replace(query="").geturl(), autocommit=True)
    admin.execute(f"CREATE DATABASE {name}")
    connections.close_all()
    settings = connection.settings_dict
    before = dict(settings)
    settings.update(given, ENGINE="django.db.backends.postgresql", NAME=name, OPTIONS={})
    del connections["default"]
    try:
        yield
    finally:
        get_app().sync.close()
        connections.close_all()
        del connections["default"]
        settings.update(before)
        admin.execute(f"DROP DATABASE {name} WITH (FORCE)")
        admin.close()
        postgres_server.release(tmp_path)


@pytest.mark.server
def test_on_postgresql_a_job_is_part_of_the_transaction(on_postgres):
    get_app().open()
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE note (text text NOT NULL)")
    with transaction.atomic():
        kept = tasks.add_note.enqueue("from a job")
    try:
        with transaction.atomic():
            lost = tasks.add_note.enqueue("lost")
            raise LookupError
    except LookupError:
        pass
    app = get_worker_app("default")
    app.sync.run(app.worker(burst=True, poll_min=0.01).run(handle_signals=False))
    kept.refresh()

    assert kept.status == TaskResultStatus.SUCCESSFUL
    with pytest.raises(TaskResultDoesNotExist):
        tasks.add_note.get_result(lost.id)
    with connection.cursor() as cursor:
        cursor.execute("SELECT text FROM note")
        assert cursor.fetchall() == [("from a job",)]
