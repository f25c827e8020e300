"""Questions that are answered with what others know: a search engine (Search-R1) or other models
(Router-R1)."""

from __future__ import annotations

from mrlm.environments._routing import blocks, form, routing_reward
from mrlm.environments.search_qa.world import STOPS, SearchQAEnvironment

PLUGIN = SearchQAEnvironment

__all__ = ["PLUGIN", "STOPS", "SearchQAEnvironment", "blocks", "form", "routing_reward"]
