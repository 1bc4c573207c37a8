"""The pytest plugin: the fixture `millrace` puts an app on a memory store for the length of a test.

Say which app, in the project's configuration

    [tool.pytest.ini_options]
    millrace_app = "shop.jobs:app"

or by a fixture `millrace_app` of one's own that returns it. pytest loads this in every run where Millrace is
installed, so what runs jobs is imported only once a test asks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from millrace.runtime.app import App
    from millrace.testing.harness import Harness

SETTING = "millrace_app"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(SETTING, 'the app under test for the fixture `millrace`, as "module:name"', default="")


@pytest.fixture
def millrace_app(request: pytest.FixtureRequest) -> App:
    """The app under test: what the setting `millrace_app` names, unless a conftest.py says otherwise."""
    place = str(request.config.getini(SETTING)).strip()
    if not place:
        pytest.fail(
            'the fixture `millrace` does not know which app is under test. Set millrace_app = "module:name" under '
            "[tool.pytest.ini_options], or define a fixture `millrace_app` that returns it",
            pytrace=False,
        )
    return _find(place)


@pytest.fixture
def millrace(millrace_app: App, millrace_on_memory: Callable[[App], Harness]) -> Harness:
    """The app under test on an empty store in memory, on a clock that only the test moves."""
    return millrace_on_memory(millrace_app)


@pytest.fixture
def millrace_on_memory() -> Iterator[Callable[[App], Harness]]:
    """For tests with several apps: `shop = millrace_on_memory(shop_app)`; all are put back after the test."""
    from millrace.testing.harness import on_memory

    with ExitStack() as stack:
        yield lambda app: stack.enter_context(on_memory(app))


def _find(place: str) -> App:
    import pkgutil

    from millrace.runtime.app import App

    try:
        found = pkgutil.resolve_name(place)
        problem = f"is {found!r}, not a millrace.App"
    except (ImportError, AttributeError, ValueError) as error:
        found, problem = None, f"cannot be imported: {type(error).__name__}: {error}"
    if not isinstance(found, App):
        pytest.fail(f"millrace_app = {place!r} {problem}", pytrace=False)
    return found
