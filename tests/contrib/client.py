"""Starlette's test client, which warns when it is imported that a later version will use another HTTP library."""

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from starlette.testclient import TestClient

__all__ = ["TestClient"]
