"""The pytest plugin. Its fixture `millrace_harness` runs an app on a memory store for the duration of a test.

Name the app in the project's configuration:

    [tool.pytest.ini_options]
    millrace_app = "shop.jobs:app"

Or define a fixture `millrace_app` that returns the app. pytest loads this plugin in every project where Millrace is
installed, so the modules that run jobs are imported only when a test uses a fixture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from millrace.app.app import App
    from millrace.testing.harness import Harness

SETTING = "millrace_app"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(SETTING, 'the app under test for the fixture `millrace_harness`, as "module:name"', default="")


@pytest.fixture
def millrace_app(request: pytest.FixtureRequest) -> App:
    """The app that the setting `millrace_app` names. To test another app, redefine this fixture in conftest.py."""
    place = str(request.config.getini(SETTING)).strip()
    if not place:
        pytest.fail(
            'the fixture `millrace_harness` needs to know the app under test. Set millrace_app = "module:name" '
            "under [tool.pytest.ini_options], or define a fixture `millrace_app` that returns it",
            pytrace=False,
        )
    return _find(place)


@pytest.fixture
def millrace_harness(millrace_app: App, millrace_on_memory: Callable[[App], Harness]) -> Harness:
    """A `Harness`: the app under test on an empty memory store, with a clock that only the test moves."""
    return millrace_on_memory(millrace_app)


@pytest.fixture
def millrace_on_memory() -> Iterator[Callable[[App], Harness]]:
    """A function that moves an app to a memory store and returns its `Harness`, for tests with several apps.

    Call it once for each app: `shop = millrace_on_memory(shop_app)`. After the test, each app uses its own store again.
    """
    from millrace.testing.harness import on_memory

    with ExitStack() as stack:
        yield lambda app: stack.enter_context(on_memory(app))


def _find(place: str) -> App:
    import pkgutil

    from millrace.app.app import App

    try:
        found = pkgutil.resolve_name(place)
        problem = f"is {found!r}, not a millrace.App"
    except (ImportError, AttributeError, ValueError) as error:
        found, problem = None, f"cannot be imported: {type(error).__name__}: {error}"
    if not isinstance(found, App):
        pytest.fail(f"millrace_app = {place!r} {problem}", pytrace=False)
    return found
