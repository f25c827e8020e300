"""Questions answered with the help of a search engine (Search-R1) or other models (Router-R1)."""

from mrlm.environments.search_qa.environment import STOPS as STOPS
from mrlm.environments.search_qa.environment import SearchQAEnvironment as SearchQAEnvironment
from mrlm.environments.search_qa.routing import blocks as blocks
from mrlm.environments.search_qa.routing import form as form
from mrlm.environments.search_qa.routing import routing_reward as routing_reward

PLUGIN = SearchQAEnvironment
