"""Keys as file names: none escapes, none meets another, and each comes back."""

from hypothesis import given
from hypothesis import strategies as st

from millrace.domain.errors import InvalidInput
from millrace.store.object.names import (
    check_key,
    check_prefix,
    file_name,
    folder_name,
    part_of_file,
    part_of_folder,
    path_of,
)

parts = st.text(min_size=1, max_size=12).filter(lambda part: part not in (".", "..") and "/" not in part)


def fits(key: str) -> bool:
    try:
        check_key(key)
    except InvalidInput:
        return False
    return True


keys = st.lists(parts, min_size=1, max_size=4).map("/".join).filter(fits)


@given(keys)
def test_a_key_comes_back_from_its_file_name(key):
    *folders, leaf = path_of(key).split("/")

    assert "/".join([*(part_of_folder(name) or "?" for name in folders), part_of_file(leaf) or "?"]) == key


@given(keys, keys)
def test_two_keys_never_meet_even_where_case_and_spelling_do_not_count(one, other):
    if one != other:
        assert path_of(one).casefold() != path_of(other).casefold()
    assert path_of(one).isascii()


@given(keys, keys)
def test_no_key_is_the_folder_of_another(one, other):
    assert not path_of(other).startswith(path_of(one) + "/")


@given(keys)
def test_a_file_name_stays_inside_and_within_its_length(key):
    names = path_of(key).split("/")

    assert len(names) == len(key.split("/"))
    assert all(name not in ("", ".", "..") and not name.startswith(".") and len(name) <= 240 for name in names)


@given(st.text(min_size=1, max_size=20))
def test_names_that_we_never_give_are_nobodys_key(name):
    """Decoding accepts exactly what encoding makes."""
    part, folder = part_of_file(name), part_of_folder(name)

    assert part is None or file_name(part) == name
    assert folder is None or folder_name(folder) == name


def test_common_keys_are_legible_on_the_disk():
    assert path_of("tasks/0/0190b5d2-7e1f.json") == "tasks/0/0190b5d2-7e1f.json"
    assert path_of("ready/0/mail/a/29/1700.7.1.send.x1") == "ready/0/mail/a/29/1700.7.1.send.x1"
    assert path_of("Job/ID") == "%4aob/%49%44%"


def test_the_quick_check_allows_nothing_that_the_slow_one_refuses():
    for length in (1, 79, 80, 81, 240, 241):
        for letter in ("a", "A", "."):
            key = "x/" + "a" + letter * (length - 1) + "/y"
            assert fits(key) == (len(folder_name("a" + letter * (length - 1))) <= 240)


def test_prefixes_end_with_a_part():
    assert check_prefix("") == "" and check_prefix("ready/0/") == "ready/0/"
    for wrong in ("ready", "/", "a//", "../", None, 3):
        try:
            check_prefix(wrong)
        except InvalidInput:
            continue
        raise AssertionError(wrong)
