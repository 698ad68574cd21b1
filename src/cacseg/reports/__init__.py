"""Tables, pictures and pages about evaluations, runs and comparisons."""
