"""Data sets: files, hub names, columns, tasks, preparation."""
