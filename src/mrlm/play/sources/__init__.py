"""Sources of episode groups: played, read from rows, collected, paired."""
