"""The doctor's look at a PostgreSQL server: what its answers survive, and what makes it slow or holds it back."""

from __future__ import annotations

from typing import Any

from millrace.cli.checkup import Finding, guarded
from millrace.cli.text import span
from millrace.store.protocol import Store

OLD = 5 * 60 * 1000  # milliseconds after which an open transaction is worth a word
BLOATED = 20  # dead rows for each one that is there
MANY_DEAD = 50_000


async def check_postgres(store: Store) -> list[Finding]:
    look = getattr(store, "facts", None)
    if look is None:
        return []
    facts = await guarded("server", look(), "see that the server is up and that this user may look at its statistics")
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
            else "a crash takes the last moments back"
        )
        return Finding("durability", "warn", f"{', '.join(weak)} off: {lost}", f"turn on {', '.join(weak)}")
    return Finding("durability", "ok", "fsync and synchronous_commit are on: an answer survives a crash of the machine")


def _autovacuum(facts: dict[str, Any]) -> Finding:
    if facts["autovacuum"] == "off":
        do = "turn autovacuum on: claims pass over what was taken before until it is vacuumed away"
        return Finding("autovacuum", "warn", "off", do)
    return Finding("autovacuum", "ok", "on")


def _old_snapshot(facts: dict[str, Any]) -> Finding:
    age = facts["oldest_age"] or 0
    if age > OLD:
        who = f"process {facts['oldest_pid']} ({facts['oldest_name'] or 'unnamed'}, {facts['oldest_state']})"
        do = f"end it: SELECT pg_terminate_backend({facts['oldest_pid']}); claims slow down while it stays"
        return Finding("snapshots", "warn", f"{who} has had a transaction open for {span(age)}", do)
    return Finding("snapshots", "ok", "no transaction has been open for long")


def _notify(facts: dict[str, Any]) -> Finding:
    if facts["notify"] is False:
        do = "connect past the pooler for faster starts, or add ?notify=off and ?pooler=transaction to the URL"
        return Finding(
            "notify", "warn", "NOTIFY does not come through, as behind a transaction pooler: workers poll", do
        )
    return Finding("notify", "ok", "NOTIFY comes through" if facts["notify"] else "switched off: workers poll")


def _bloat(facts: dict[str, Any]) -> list[Finding]:
    bloated = [
        (table, dead) for table, live, dead in facts["tables"] if dead > MANY_DEAD and dead > BLOATED * max(live, 1)
    ]
    if not bloated:
        return [Finding("bloat", "ok", "no table is mostly dead rows")]
    do = "see what holds vacuum back (an old transaction, a replication slot), then: VACUUM"
    return [Finding("bloat", "warn", f"{table}: {dead:,} dead rows", do) for table, dead in bloated]
