"""Engines: what samples. One file each."""
