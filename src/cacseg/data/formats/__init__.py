"""Labels as labelling tools write them, read in place."""
