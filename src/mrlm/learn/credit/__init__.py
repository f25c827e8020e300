"""Credit assignment: returns, baselines, shaping."""
