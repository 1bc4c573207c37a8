"""What the benchmarks share. The standard library only: the peers' scripts import it in an environment of their own."""
