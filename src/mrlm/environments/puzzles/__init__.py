"""Planning puzzles, for one agent or a planner and an executor."""
