"""What follows from runs: statistics, flags, comparisons, factors, claims."""
