"""Environments of other libraries."""
