"""Bugs to plant in the stores themselves: in Lua, in SQL, in the object engine.

Each is a change of text in one file of the package, made in a copy that one test run sees (`test_planted_stores`),
never in the package. A pattern that is no longer there, or is there more than once, fails: then the rule lives
elsewhere by now, and the bug has to be planted there again.
"""

from __future__ import annotations

import re
from typing import NamedTuple

REDIS = "store/redis/scripts/"
POSTGRES = "store/postgres/functions/settle.sql"
SQLITE = "store/sqlite/queries/"
OBJECT = "store/object/engine/"


class Edit(NamedTuple):
    """A regular expression that matches once in a file of the package, and what is to stand there instead."""

    file: str
    pattern: str
    instead: str

    def made_in(self, text: str) -> str:
        found = len(re.findall(self.pattern, text))
        assert found == 1, f"plant me again: {self.pattern!r} is {found} times in {self.file}, not once"
        return re.sub(self.pattern, self.instead, text)


class Bug(NamedTuple):
    """`sentence` is one of the conformance suite that must find it, on this store; `model`: so does the model."""

    store: str
    edits: tuple[Edit, ...]
    sentence: str
    model: bool = False


def bug(store: str, file: str, pattern: str, instead: str, found_by: str, *, model: bool = False) -> Bug:
    return Bug(store, (Edit(file, pattern, instead),), found_by, model)


SETTLE = "test_settle_judges_each_item_of_a_batch_by_itself"
EXTEND = "test_extend_judges_each_item_of_a_batch_by_itself"
RECLAIM = "test_reclaim_judges_each_lease_by_itself"
BY_ID = "test_a_batch_of_ids_is_answered_one_by_one"
WOKEN = "test_a_sleeper_is_woken_when_a_delayed_job_that_came_meanwhile_is_due"
UNFENCED = "T.held(item[1], (T.by_seq(item[1]) or {}).lease_id)"
GROUPS = "test_one_job_of_a_group_runs_at_a_time"
LIVE_KEY = "test_a_live_key_is_freed_by_the_end_of_its_owner"
MEMBERS = "test_members_run_in_line_order"
LANES = "test_a_replayed_job_stands_in_a_lane_that_its_pool_has_now"

BUGS: dict[str, Bug] = {
    # ── Redis ─────────────────────────────────────────────────────────────────────────────────────
    "Redis: the fast settle checks only the first lease of a batch": bug(
        "redis",
        REDIS + "fast_path/settle.lua",
        r"is_held\(state, lease_id, leases\[i\]\)",
        "is_held(state, lease_id, i == 1 and leases[i] or lease_id)",
        SETTLE,
        model=True,
    ),
    "Redis: a settle checks the state but not the lease": bug(
        "redis", REDIS + "settle.lua", r"T\.held\(item\[1\], item\[2\]\)", UNFENCED, SETTLE, model=True
    ),
    "Redis: an extend checks the state but not the lease": bug(
        "redis", REDIS + "extend.lua", r"T\.held\(item\[1\], item\[2\]\)", UNFENCED, EXTEND
    ),
    "Redis: a replay keeps its old lane": bug(
        "redis", REDIS + "lib/replaying.lua", r"job\.lane = lane_again\(job\)", "", LANES, model=True
    ),
    "Redis: a delayed enqueue wakes nobody": bug(
        "redis",
        REDIS + "fast_path/enqueue_one.lua",
        r"(\n  wake\([^\n]*)",
        r"\n  if delay == 0 then\1\n  end",
        WOKEN,
    ),
    "Redis: the fast settle opens no other job of the group": bug(
        "redis", REDIS + "fast_path/lines.lua", r"if n > last then", "if n > last and n < 0 then", GROUPS, model=True
    ),
    "Redis: the fast settle frees no key": bug(
        "redis", REDIS + "fast_path/lines.lua", r"scope == 'live'", "scope == 'none'", LIVE_KEY, model=True
    ),
    "Redis: the fast enqueue opens every member of a group": bug(
        "redis", REDIS + "fast_path/links.lua", r"lines\[place\]\.open == seq", "true", GROUPS, model=True
    ),
    "Redis: a reclaim has no limit": bug("redis", REDIS + "reclaim.lua", r"#found < limit and job", "job", RECLAIM),
    "Redis: a cancel ends what runs": bug(
        "redis",
        REDIS + "cancel.lua",
        r"job\.state == 'waiting'",
        "(job.state == 'waiting' or job.state == 'running')",
        BY_ID,
    ),
    "Redis: a child starts after the first of its parents": bug(
        "redis",
        REDIS + "lib/ending.lua",
        r"child\.blocked = child\.blocked - 1",
        "child.blocked = 0",
        "test_a_child_starts_only_after_its_parents",
    ),
    "Redis: a key is not freed when its job is buried": bug(
        "redis",
        REDIS + "lib/step.lua",
        r"(\n *)S\.free_key\(job, false\)",
        r"\1if job.state ~= 'dead' then S.free_key(job, false) end",
        LIVE_KEY,
    ),
    "Redis: an event of a later generation says it is the first": bug(
        "redis",
        REDIS + "lib/events.lua",
        r"job\.task, job\.generation",
        "job.task, 1",
        "test_generations_count_up",
    ),
    "Redis: a token is spent on what was not delivered": bug(
        "redis",
        REDIS + "claim.lua",
        r"L\.spend\(row, row\.settings, count\)",
        "L.spend(row, row.settings, limit)",
        "test_a_claim_that_comes_back_short_spends_only_what_it_delivered",
    ),
    # ── PostgreSQL ────────────────────────────────────────────────────────────────────────────────
    "PostgreSQL: an extend of several does not check the lease": Bug(
        "postgres",
        (
            Edit(
                POSTGRES,
                r"l\.seq = i\.seq AND l\.id = i\.id",
                "l.seq = i.seq AND (l.id = i.id OR cardinality(seqs) > 1)",
            ),
            Edit(POSTGRES, r"held\.seq = item\.seq AND held\.id = item\.id", "held.seq = item.seq"),
        ),
        EXTEND,
        model=True,
    ),
    "PostgreSQL: the fast settle does not check the lease": bug(
        "postgres", POSTGRES, r"h\.seq = i\.seq AND h\.id = i\.lease", "h.seq = i.seq", SETTLE, model=True
    ),
    "PostgreSQL: the fast settle miscounts a batch": bug(
        "postgres", POSTGRES, r"SELECT e\.queue, -count\(\*\), count", "SELECT e.queue, -1, count", SETTLE
    ),
    "PostgreSQL: the fast settle opens no next job of a group": bug(
        "postgres",
        POSTGRES,
        r"(SELECT m\.combo, m\.available_at, m\.seq, true FROM millrace\.job AS m WHERE )(m\.seq = ANY \(nexts\))",
        r"\1false AND \2",
        MEMBERS,
    ),
    "PostgreSQL: the fast claim counts no running job": bug(
        "postgres",
        "store/postgres/functions/claim.sql",
        r"q\.max_running - q\.running - coalesce\(t\.running, 0\)",
        "q.max_running",
        "test_no_more_jobs_run_than_the_queue_allows",
        model=True,
    ),
    "PostgreSQL: the fast claim spends one token for many jobs": bug(
        "postgres",
        "store/postgres/functions/claim.sql",
        r"millrace\.tokens_of\(q, at\) - cardinality\(seqs\)",
        "millrace.tokens_of(q, at) - 1",
        "test_a_rate_gives_so_many_jobs_per_second",
        model=True,
    ),
    "PostgreSQL: the fast enqueue opens a second job of a group": bug(
        "postgres",
        "store/postgres/functions/enqueue.sql",
        r"WHERE i\.line IS NULL AND coalesce",
        "WHERE coalesce",
        "test_one_job_of_a_group_runs_at_a_time",
        model=True,
    ),
    "PostgreSQL: a reclaim has no limit": bug(
        "postgres",
        "store/postgres/queries/claim.sql",
        r"(ORDER BY lease\.until, lease\.seq\nLIMIT )(\$\d::integer)",
        r"\1greatest(\2, 1000)",
        RECLAIM,
    ),
    # ── SQLite ────────────────────────────────────────────────────────────────────────────────────
    "SQLite: of jobs that are due at once the last comes first": bug(
        "sqlite",
        SQLITE + "claim.sql",
        r"(:combo AND open = 1 AND available_at <= :now\nORDER BY available_at, seq)\n",
        r"\1 DESC\n",
        "test_claim_judges_each_job_by_itself",
    ),
    "SQLite: of jobs that are in order the last comes first": bug(
        "sqlite",
        SQLITE + "claim.sql",
        r"(open = 2 AND state = 0\n +ORDER BY seq)\n",
        r"\1 DESC\n",
        "test_equal_priorities_are_first_in_first_out",
    ),
    "SQLite: a lease expires one millisecond early": bug(
        "sqlite",
        SQLITE + "claim.sql",
        r"lease_until < :now",
        "lease_until <= :now",
        "test_a_lease_holds_through_its_last_millisecond",
    ),
    "SQLite: a finished job keeps its lease": bug(
        "sqlite", SQLITE + "jobs.sql", r"    lease_id     = NULL,\n    lease_until  = NULL,\n", "", SETTLE
    ),
    # ── the object engine ─────────────────────────────────────────────────────────────────────────
    "object: a reclaim has no limit": bug(
        "object",
        OBJECT + "index_table.py",
        r"(lease_until, job\.seq\)\)\n.*sorted\(found\))\[:limit\]",
        r"\1",
        RECLAIM,
    ),
    "object: a reclaim takes what it was told to leave": bug(
        "object", OBJECT + "index_table.py", r" or job\.lease_id in ignore", "", RECLAIM
    ),
    "object: a delayed member of a group is slept over": bug(
        "object",
        OBJECT + "index_table.py",
        r'instants \+= \[entry\.at for entry in outside if "o" in entry\.flags\]',
        "pass",
        WOKEN,
    ),
}
