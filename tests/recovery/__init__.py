"""Runs that are killed, checkpoints that are damaged, disks that are full."""
