"""Environments that agents play in. One file or folder each; none imports torch."""
