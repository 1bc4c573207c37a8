"""Evidence that the promises hold: the model, the simulation, faults and kill programs. Not part of the wheel."""
