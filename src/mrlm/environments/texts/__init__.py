"""Texts that are compared with references or scored by rules."""
