"""Episode generation: agents, environments and workflows produce groups of episodes. It imports
neither torch nor `learn`."""
