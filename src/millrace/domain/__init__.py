"""The rules of the queue: pure, without clock, chance or I/O of their own."""
