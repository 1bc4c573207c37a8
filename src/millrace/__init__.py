"""Millrace: a job queue for Python that starts in a file and ends on a cluster."""

__version__ = "0.1.0"
