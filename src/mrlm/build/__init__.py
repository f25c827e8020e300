"""A config becomes a run: one file per part that is built."""
