"""What every store must do, as sentences: plain async test functions over the fixtures `store` and `clock`.

`store` is connected and empty and reads its time from `clock`, a `VirtualClock`. A test module takes the
sentences over with `from millrace.testing.conformance.leases import *`, one line per topic of `TOPICS`.
The numbers in the docstrings are those of the specification.
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
    "control",
    "events",
    "spans",
    "retention",
    "reading",
    "workers",
    "schedules",
    "waiting",
    "hooks",
    "bad_input",
    "transactions",
)
