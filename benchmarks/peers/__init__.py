"""The queues a user would take instead, one script each; run by `benchmarks.compare` in their own environment."""
