"""Companions of the training loop: the run, its checks, metrics and profiler."""
