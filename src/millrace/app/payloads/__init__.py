"""Payloads and results: converts Python values to bytes and back, and checks them against a handler's annotations.

Start at `payload.py`; `signature.py` reads the annotations, `serde.py` has the formats. Stored bytes must stay
readable: a change of a format needs a new serde name. Stores do not look inside payloads.
"""
