"""Questions answered with the help of a search engine (Search-R1) or other models (Router-R1)."""

from mrlm.environments.search_qa.environment import STOPS, SearchQAEnvironment
from mrlm.environments.shared.routing import blocks, form, routing_reward

PLUGIN = SearchQAEnvironment

__all__ = ["PLUGIN", "STOPS", "SearchQAEnvironment", "blocks", "form", "routing_reward"]
