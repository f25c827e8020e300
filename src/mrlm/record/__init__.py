"""The record of a run: episodes with their turns and token columns, on disk and read back."""
