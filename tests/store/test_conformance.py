"""Every store keeps every promise: the sentences of `millrace.testing.conformance`, on all stores of `conftest`."""

import pkgutil
from importlib.util import find_spec

import millrace.store
from millrace.testing.conformance.bad_input import *  # noqa: F403
from millrace.testing.conformance.batches import *  # noqa: F403
from millrace.testing.conformance.batches_by_id import *  # noqa: F403
from millrace.testing.conformance.cancelling import *  # noqa: F403
from millrace.testing.conformance.claims import *  # noqa: F403
from millrace.testing.conformance.control import *  # noqa: F403
from millrace.testing.conformance.dead_letters import *  # noqa: F403
from millrace.testing.conformance.deduplication import *  # noqa: F403
from millrace.testing.conformance.delays import *  # noqa: F403
from millrace.testing.conformance.deleting import *  # noqa: F403
from millrace.testing.conformance.dependencies import *  # noqa: F403
from millrace.testing.conformance.dependency_failures import *  # noqa: F403
from millrace.testing.conformance.enqueueing import *  # noqa: F403
from millrace.testing.conformance.events import *  # noqa: F403
from millrace.testing.conformance.failures import *  # noqa: F403
from millrace.testing.conformance.groups import *  # noqa: F403
from millrace.testing.conformance.hooks import *  # noqa: F403
from millrace.testing.conformance.keys import *  # noqa: F403
from millrace.testing.conformance.lanes import *  # noqa: F403
from millrace.testing.conformance.leases import *  # noqa: F403
from millrace.testing.conformance.limits import *  # noqa: F403
from millrace.testing.conformance.ordering import *  # noqa: F403
from millrace.testing.conformance.pools import *  # noqa: F403
from millrace.testing.conformance.read_access import *  # noqa: F403
from millrace.testing.conformance.reading import *  # noqa: F403
from millrace.testing.conformance.reclaiming import *  # noqa: F403
from millrace.testing.conformance.replaying import *  # noqa: F403
from millrace.testing.conformance.replaying_children import *  # noqa: F403
from millrace.testing.conformance.retention import *  # noqa: F403
from millrace.testing.conformance.schedules import *  # noqa: F403
from millrace.testing.conformance.settling import *  # noqa: F403
from millrace.testing.conformance.spans import *  # noqa: F403
from millrace.testing.conformance.transfer import *  # noqa: F403
from millrace.testing.conformance.waiting import *  # noqa: F403
from millrace.testing.conformance.waking import *  # noqa: F403
from millrace.testing.conformance.workers import *  # noqa: F403


def test_every_backend_of_the_package_is_under_test(stores_under_test: set[str]) -> None:
    packages = [module.name for module in pkgutil.iter_modules(millrace.store.__path__) if module.ispkg]
    assert stores_under_test == {name for name in packages if find_spec(f"millrace.store.{name}.store") is not None}
