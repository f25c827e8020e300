"""Environments around an environment."""
