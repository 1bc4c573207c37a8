"""Conformance tests: async test functions that every store must pass. They use the fixtures `store` and `clock`.

The fixture `store` returns a connected, empty store that reads its time from `clock`. The fixture `clock` returns a
`VirtualClock`. A test module imports the tests of each topic in `TOPICS`, for example with `from
millrace.testing.conformance.leases import *`.
"""

TOPICS = (
    "enqueueing",
    "deduplication",
    "ordering",
    "delays",
    "claims",
    "limits",
    "leases",
    "reclaiming",
    "settling",
    "batches",
    "batches_by_id",
    "failures",
    "dead_letters",
    "groups",
    "lanes",
    "pools",
    "dependencies",
    "dependency_failures",
    "keys",
    "cancelling",
    "replaying",
    "replaying_children",
    "deleting",
    "control",
    "events",
    "spans",
    "retention",
    "reading",
    "read_access",
    "workers",
    "schedules",
    "waiting",
    "waking",
    "hooks",
    "bad_input",
    "transactions",
    "transfer",
)
