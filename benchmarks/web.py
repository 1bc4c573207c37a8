"""The HTTP API and the dashboard over loopback, on a large store and under load.

    python -m benchmarks.web lists   [--store sqlite] [--jobs 1000000]     pages of lists, and what the screens ask for
    python -m benchmarks.web paint   [--store sqlite] [--jobs 1000000]     the dashboard in Chromium
    python -m benchmarks.web enqueue [--store redis] [--seconds 10] [--connections 32]     single enqueues, with wrk

`--store` is sqlite, redis or postgres for one that is made for the run; or a URL, of one that is filled up to --jobs
and stays. The server is `millrace serve` in a process of its own. `--json` prints all that was measured.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from typing import Any

from benchmarks.lab.web_enqueue import enqueues
from benchmarks.lab.web_lists import lists
from benchmarks.lab.web_paint import paints


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["lists", "paint", "enqueue"])
    parser.add_argument("--store", default="sqlite")
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--threads", type=int, default=1, help="of wrk")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    rows: list[dict[str, Any]]
    if options.what == "lists":
        rows = asyncio.run(lists(options.store, options.jobs))
    elif options.what == "paint":
        rows = asyncio.run(paints(options.store, options.jobs, options.rounds))
    else:
        wanted = (options.seconds, options.connections, options.threads, options.rounds)
        rows = asyncio.run(enqueues(options.store, *wanted))
    if options.json:
        print(json.dumps({"load": load, "rows": rows}))
        return
    print(f"load of the machine before: {load:.1f}")
    print("\t".join(rows[0]))
    for row in rows:
        print("\t".join(f"{value:,.1f}" if isinstance(value, float) else str(value) for value in row.values()))


if __name__ == "__main__":
    main()
