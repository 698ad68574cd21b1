"""What things cost: timings that users can repeat."""
