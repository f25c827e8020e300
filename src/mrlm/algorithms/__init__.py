"""Algorithms: who earned what, and what to minimise. One file each."""
