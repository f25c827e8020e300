"""Hanabi: players with common reward build stacks of cards; each sees all hands but its own."""

from mrlm.environments.games.hanabi.environment import HanabiEnvironment as HanabiEnvironment

PLUGIN = HanabiEnvironment
