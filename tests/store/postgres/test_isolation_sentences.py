"""Every sentence under each default isolation of the database; `test_isolation.py` has those that matter most."""

from __future__ import annotations

import pytest

from millrace.testing.conformance.transactions import *  # noqa: F403
from tests.store.postgres.test_isolation import store  # noqa: F401 (the fixture)
from tests.store.test_conformance import *  # noqa: F403
from tests.store.test_races import (  # noqa: F401
    test_a_child_enqueued_while_its_parents_end_is_released,
    test_a_group_runs_one_at_a_time_whoever_asks,
    test_a_job_is_either_cancelled_or_claimed,
    test_one_key_under_fifty_ids_at_once_makes_one_job,
    test_producers_workers_and_operators_do_not_lose_or_double_a_job,
    together,
)

pytestmark = pytest.mark.nightly
