"""Handlers in processes of their own: what the worker keeps of them, and what runs inside (docs/decisions/0007)."""
