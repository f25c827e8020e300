"""Sources of episode groups: sampled, read from rows, collected, paired."""
