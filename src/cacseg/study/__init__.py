"""Studies: many short runs of one plan on one device, paired by seed, and what follows from them."""
