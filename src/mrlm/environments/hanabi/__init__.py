"""Hanabi: players with common reward build stacks of cards; each sees all hands but its own."""

from mrlm.environments.hanabi.environment import HanabiEnvironment

PLUGIN = HanabiEnvironment

__all__ = ["PLUGIN", "HanabiEnvironment"]
