"""Pages of a run for people: its curves, episodes, siblings and tokens in a browser."""
