"""Output of a run for people: the run folder's log and the console."""
