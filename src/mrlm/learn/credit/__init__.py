"""Credit assignment: returns, baselines."""
