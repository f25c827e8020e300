"""Builds a run from a config: one file per part."""
