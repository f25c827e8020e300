"""Engines: the samplers of policies. One file each."""
