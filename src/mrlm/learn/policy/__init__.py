"""Policies: loading, adapters, references, copies, weight files."""
