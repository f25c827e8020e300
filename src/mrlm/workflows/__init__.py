"""Workflows: the order in which agents act, and the messages each of them sees. One file each."""
