"""Shadow replays run finished jobs again with another version of their handler, and compare how the runs ended.

`history.py` selects the jobs, from a lake or from the store; `sandbox.py` runs them on executors, in a queue in memory;
`comparing.py` compares a run with the one of the past; `replay.py` is the driver's side; `payloads.py` keeps payloads
in a lake.
"""

from millrace.spark.shadow.history import PastJobs
from millrace.spark.shadow.replay import ShadowFailed, ShadowRequest, ShadowResult, candidates, shadow

__all__ = ["PastJobs", "ShadowFailed", "ShadowRequest", "ShadowResult", "candidates", "shadow"]
