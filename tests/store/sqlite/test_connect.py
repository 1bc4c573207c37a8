"""URLs become stores; a URL that cannot is refused in words, without its password (X2)."""

import pytest

from millrace.domain.errors import InvalidInput, MissingDriver
from millrace.store.connect import connect
from millrace.store.sqlite import SqliteStore
from millrace.testing.builders import a_spec
from tests.narrowing import checked_cast


def test_memory_is_new_each_time_unless_it_has_a_name():
    assert connect("memory://") is not connect("memory://")
    assert connect("memory://shared") is connect("memory://shared")
    assert connect("memory://shared") is not connect("memory://other")


async def test_three_slashes_are_relative_and_four_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for url in ("sqlite:///relative.db", f"sqlite:///{tmp_path}/absolute.db"):
        store = connect(url)
        await store.enqueue([a_spec()])
        await store.close()
        assert store.url == url

    assert (tmp_path / "relative.db").exists() and (tmp_path / "absolute.db").exists()


async def test_a_path_may_hold_any_character(tmp_path):
    store = connect(f"sqlite:///{tmp_path}/with%20blank%3F%23.db")
    await store.enqueue([a_spec()])
    await store.close()

    assert (tmp_path / "with blank?#.db").exists()


def test_options_are_checked(tmp_path):
    assert "may take" in checked_cast(SqliteStore, connect(f"sqlite:///{tmp_path}/a.db?durability=relaxed")).durability
    with pytest.raises(InvalidInput, match="no option 'durabilty'"):
        connect("sqlite:///a.db?durabilty=relaxed")
    with pytest.raises(InvalidInput, match="full or relaxed, not 'none'"):
        connect("sqlite:///a.db?durability=none")
    with pytest.raises(InvalidInput, match="it takes none"):
        connect("memory://?durability=full")


@pytest.mark.parametrize("url", ["sqlite:///:memory:", "sqlite://", "sqlite:///"])
def test_a_database_without_a_file_is_refused_with_a_hint(url):
    with pytest.raises(InvalidInput, match="memory://"):
        connect(url)


def test_two_slashes_are_a_common_slip():
    with pytest.raises(InvalidInput, match="three slashes"):
        connect("sqlite://jobs.db")


@pytest.mark.parametrize("scheme", ["s3", "file"])
def test_stores_that_are_not_there_yet_say_so_and_hide_the_password(scheme):
    with pytest.raises((InvalidInput, MissingDriver)) as caught:
        connect(f"{scheme}://ada:s3cret@host/db")

    assert "s3cret" not in str(caught.value)
    assert scheme in str(caught.value)


@pytest.mark.parametrize("url", ["mysql://ada:s3cret@host/db", "jobs.db", ""])
def test_anything_else_lists_what_is_known(url):
    with pytest.raises(InvalidInput, match="sqlite") as caught:
        connect(url)

    assert "s3cret" not in str(caught.value)
