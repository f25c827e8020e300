"""What a run writes for people: the run folder's log and the console."""
