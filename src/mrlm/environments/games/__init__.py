"""Games of several players, and cooperation in a matrix."""
