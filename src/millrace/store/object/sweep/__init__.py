"""The sweep: puts right whatever a crash has left, piece by piece."""

from millrace.store.object.sweep.sweeper import Sweeper

__all__ = ["Sweeper"]
