"""A pipeline run that is killed at a commit: `python -m tests.spark.programs.killed_take URL LAKE COMMIT`.

SIGKILL comes right before commit number COMMIT: 1 is that of the events, 2 to 9 are those of the derived tables. With
0 the run ends by itself.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from millrace.spark.lake import LakePlace, StoreFeed, TakeRequest, deriving, take, taking
from millrace.spark.lake.delta import commit
from millrace.spark.session import QUICK, session


def main(url: str, lake: str, last: int) -> None:
    commits = 0

    def counted(*given: Any, **facts: Any) -> None:
        nonlocal commits
        commits += 1
        if commits == last:
            os.kill(os.getpid(), signal.SIGKILL)
        commit(*given, **facts)

    taking.commit = deriving.commit = counted  # type: ignore[attr-defined]
    spark = session("millrace-killed", "local[2]", memory="1g", java_options=QUICK)
    take(LakePlace(lake), spark, StoreFeed(spark, url=url), TakeRequest(groups=True), lambda _text: None)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
