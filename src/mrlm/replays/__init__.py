"""Re-execution of a recorded run."""
