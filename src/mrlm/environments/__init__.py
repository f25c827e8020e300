"""Environments: the worlds agents play in. One file or folder each; none imports torch."""
