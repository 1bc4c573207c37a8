"""The doctor's checks of a PostgreSQL server: durability, and causes of slow claims."""

from __future__ import annotations

from typing import Any

from millrace.app.format import span
from millrace.cli.doctor.finding import Finding, guarded
from millrace.store.protocol import Store

OLD = 5 * 60 * 1000  # milliseconds after which an open transaction is reported
BLOATED = 20  # dead rows per live row
MANY_DEAD = 50_000


async def check_postgres(store: Store) -> list[Finding]:
    look = getattr(store, "facts", None)
    if look is None:
        return []
    facts = await guarded("server", look(), "check that the server is up and that this user can read its statistics")
    if isinstance(facts, Finding):
        return [facts]
    return [
        _version(facts),
        _durability(facts),
        _autovacuum(facts),
        _old_snapshot(facts),
        _notify(facts),
        *_bloat(facts),
    ]


def _version(facts: dict[str, Any]) -> Finding:
    version = int(facts["version"]) // 10_000
    if version < 14:
        return Finding("server", "fail", f"PostgreSQL {version}", "use PostgreSQL 14 or newer")
    return Finding("server", "ok", f"PostgreSQL {version}, schema {facts['schema']}")


def _durability(facts: dict[str, Any]) -> Finding:
    weak = [name for name in ("fsync", "synchronous_commit", "full_page_writes") if facts[name] == "off"]
    if weak:
        lost = (
            "a crash may damage the database"
            if weak != ["synchronous_commit"]
            else "a crash loses the last transactions"
        )
        return Finding("durability", "warn", f"{', '.join(weak)} off: {lost}", f"turn on {', '.join(weak)}")
    return Finding(
        "durability", "ok", "fsync and synchronous_commit are on: acknowledged writes survive a crash of the machine"
    )


def _autovacuum(facts: dict[str, Any]) -> Finding:
    if facts["autovacuum"] == "off":
        do = "turn autovacuum on: claims scan dead rows until vacuum removes them"
        return Finding("autovacuum", "warn", "off", do)
    return Finding("autovacuum", "ok", "on")


def _old_snapshot(facts: dict[str, Any]) -> Finding:
    age = facts["oldest_age"] or 0
    if age > OLD:
        who = f"process {facts['oldest_pid']} ({facts['oldest_name'] or 'unnamed'}, {facts['oldest_state']})"
        do = f"end it: SELECT pg_terminate_backend({facts['oldest_pid']}); claims slow down while it is open"
        return Finding("snapshots", "warn", f"a transaction of {who} has been open for {span(age)}", do)
    return Finding("snapshots", "ok", "no transaction has been open for long")


def _notify(facts: dict[str, Any]) -> Finding:
    if facts["notify"] is False:
        do = "connect without the pooler for faster starts, or add ?notify=off and ?pooler=transaction to the URL"
        return Finding(
            "notify",
            "warn",
            "NOTIFY does not work, for example because of a pooler in transaction mode; workers poll",
            do,
        )
    return Finding("notify", "ok", "NOTIFY works" if facts["notify"] else "NOTIFY is turned off: workers poll")


def _bloat(facts: dict[str, Any]) -> list[Finding]:
    bloated = [
        (table, dead) for table, live, dead in facts["tables"] if dead > MANY_DEAD and dead > BLOATED * max(live, 1)
    ]
    if not bloated:
        return [Finding("bloat", "ok", "no table consists mostly of dead rows")]
    do = "find out what prevents vacuum (an old transaction, a replication slot), then run VACUUM"
    return [Finding("bloat", "warn", f"{table}: {dead:,} dead rows", do) for table, dead in bloated]
