"""Base classes of algorithms."""
