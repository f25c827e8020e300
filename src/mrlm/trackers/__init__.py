"""Trackers: where metrics go besides the run folder. One file each."""
