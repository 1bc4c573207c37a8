"""Real workers on a virtual clock and an unreliable network, all of it drawn from one seed."""
