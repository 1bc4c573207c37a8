"""The model: a state machine that drives a store and the reference ledger alike, and compares them after each step."""
