"""Workflows: who speaks when, and who sees what. One file each."""
