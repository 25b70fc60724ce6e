"""Who computes: the promise (`base`) and the programs that keep it."""
